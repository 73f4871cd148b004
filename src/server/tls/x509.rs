//! The fields of an X.509 certificate (RFC 5280 section 4.1) that rustls does not expose: `notAfter`, the subject
//! alternative name and the common name.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustls::pki_types::UnixTime;
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, TagClass};

/// `id-at-commonName`.
const COMMON_NAME: &[u64] = &[2, 5, 4, 3];

/// `id-ce-subjectAltName`.
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];

/// The fields of a certificate that the server uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// The first time at which it is valid.
    pub(super) not_before: UnixTime,
    /// The last time at which it is valid.
    pub(super) not_after: UnixTime,
    /// The DNS names, email addresses, URIs and IP addresses of the subject alternative name.
    pub(super) names: Vec<String>,
    /// The common name of the subject.
    common_name: Option<String>,
    /// Whether it is of version 3, which has extensions.
    pub(super) is_version_3: bool,
}

impl Certificate {
    /// The first subject alternative name, or else the common name of the subject.
    pub(super) fn name(&self) -> Option<&String> {
        self.names.first().or(self.common_name.as_ref())
    }

    /// Parses a certificate in DER. `None` if it is malformed.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        yasna::parse_der(der, |reader| {
            reader.read_sequence(|outer| {
                let certificate = outer.next().read_sequence(read_contents)?;
                // The signature and its algorithm.
                outer.next().read_der()?;
                outer.next().read_der()?;
                Ok(certificate)
            })
        })
        .ok()
    }
}

fn read_contents(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Certificate> {
    let explicit = |number| Tag::context(number);
    let version = fields
        .read_optional(|reader| reader.read_tagged(explicit(0), |version| version.read_i64()))?;
    // The serial number, the signature algorithm and the issuer.
    for _ in 0..3 {
        fields.next().read_der()?;
    }
    let (not_before, not_after) = fields
        .next()
        .read_sequence(|validity| Ok((read_time(validity.next())?, read_time(validity.next())?)))?;
    let common_name = read_common_name(fields.next())?;
    // subjectPublicKeyInfo
    fields.next().read_der()?;
    // Unique identifiers, which are bit strings.
    for number in [1, 2] {
        fields.read_optional(|reader| {
            reader.read_tagged_implicit(explicit(number), |id| id.read_bitvec_bytes())
        })?;
    }
    let names =
        fields.read_optional(|reader| reader.read_tagged(explicit(3), read_alternative_names))?;
    Ok(Certificate {
        not_before,
        not_after,
        names: names.unwrap_or_default(),
        common_name,
        is_version_3: version == Some(2),
    })
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<UnixTime> {
    let seconds = match reader.lookahead_tag()? {
        TAG_UTCTIME => reader.read_utctime()?.datetime().unix_timestamp(),
        TAG_GENERALIZEDTIME => reader.read_generalized_time()?.datetime().unix_timestamp(),
        _ => return Err(yasna::ASN1Error::new(yasna::ASN1ErrorKind::Invalid)),
    };
    let since = Duration::from_secs(seconds.max(0).unsigned_abs());
    Ok(UnixTime::since_unix_epoch(since))
}

/// The first common name of a distinguished name.
fn read_common_name(reader: BERReader<'_, '_>) -> ASN1Result<Option<String>> {
    let mut found = None;
    reader.read_sequence_of(|set| {
        set.read_set_of(|attribute| {
            attribute.read_sequence(|pair| {
                let kind = pair.next().read_oid()?;
                let value = pair.next().read_tagged_der()?;
                if found.is_none() && kind == ObjectIdentifier::from_slice(COMMON_NAME) {
                    found = String::from_utf8(value.value().to_vec()).ok();
                }
                Ok(())
            })
        })
    })?;
    Ok(found)
}

/// The subject alternative names among the extensions.
fn read_alternative_names(extensions: BERReader<'_, '_>) -> ASN1Result<Vec<String>> {
    let mut found = Vec::new();
    extensions.read_sequence_of(|extension| {
        extension.read_sequence(|fields| {
            let kind = fields.next().read_oid()?;
            fields.read_optional(|critical| critical.read_bool())?;
            let value = fields.next().read_bytes()?;
            if kind == ObjectIdentifier::from_slice(SUBJECT_ALT_NAME) {
                yasna::parse_der(&value, |names| {
                    names.read_sequence_of(|name| {
                        let name = name.read_tagged_der()?;
                        if name.tag().tag_class == TagClass::ContextSpecific {
                            found.extend(general_name(name.tag().tag_number, name.value()));
                        }
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })
    })?;
    Ok(found)
}

/// A name (RFC 5280 section 4.2.1.6): rfc822Name [1], dNSName [2], uniformResourceIdentifier [6] or iPAddress [7].
fn general_name(tag: u64, value: &[u8]) -> Option<String> {
    match tag {
        1 | 6 => String::from_utf8(value.to_vec()).ok(),
        2 => String::from_utf8(value.to_ascii_lowercase()).ok(),
        7 => {
            let v4 = <[u8; 4]>::try_from(value).map(|ip| Ipv4Addr::from(ip).to_string());
            let v6 = <[u8; 16]>::try_from(value).map(|ip| Ipv6Addr::from(ip).to_string());
            v4.or(v6).ok()
        }
        _ => None,
    }
}
