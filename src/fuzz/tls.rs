//! Fuzz entry point of TLS.

/// A conversation between the server's side of TLS and a client of rustls, cut and corrupted in any way.
pub fn tls(data: &[u8]) {
    crate::server::converse_over_tls(data);
}

#[cfg(test)]
mod tests {
    use crate::random::Random;

    #[test]
    fn both_sides_of_tls_get_what_the_other_has_sent() {
        let mut random = Random::new(17);
        for _ in 0..500 {
            super::tls(&random.bytes(120));
        }
    }
}
