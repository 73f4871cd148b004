//! Tests of the settings.

use super::*;

#[test]
fn the_default_is_valid() {
    assert_eq!(Config::default().validate(), Ok(()));
}

#[test]
fn a_setting_that_is_not_valid_is_named() {
    type Spoil = fn(&mut Config);
    let cases: [(&str, Spoil); 13] = [
        ("listen", |config| config.listen.clear()),
        ("max_clients", |config| config.max_clients = 0),
        ("max_clients", |config| config.max_clients = 1 << 20),
        ("max_clients_per_address", |config| {
            config.max_clients_per_address = Some(0);
        }),
        ("auth_header", |config| {
            config.auth_header = Some("X-User".to_owned());
        }),
        ("auth_header", |config| {
            config.trusted_proxies.push(Peers::Unix);
            config.auth_header = Some("X User".to_owned());
        }),
        ("auth_header", |config| {
            config.trusted_proxies.push(Peers::Unix);
            config.auth_header = Some("Authorization".to_owned());
        }),
        ("auth_header", |config| {
            config.trusted_proxies.push(Peers::Unix);
            config.access.token_header = Some("X-User".to_owned());
            config.auth_header = Some("x-user".to_owned());
        }),
        ("soft_outbound", |config| config.max_outbound = 1024),
        ("turn_bytes", |config| config.turn_bytes = 0),
        ("turn_accepts", |config| config.turn_accepts = 0),
        ("affinity_cookie", |config| {
            config.affinity_cookie = Some("a=b\r\nSet-Cookie: c=d".to_owned());
        }),
        ("node", |config| config.node = Some("a;b".to_owned())),
    ];
    for (setting, spoil) in cases {
        let mut config = Config::default();
        spoil(&mut config);
        let error = config.validate().expect_err(setting);
        assert_eq!(error.setting(), setting);
        assert!(error.to_string().starts_with(setting));
    }
}
