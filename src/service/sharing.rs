//! Whether several principals share a service, and what one of them may take of a limit.

use crate::Principal;
use crate::record::record;

/// The principals that use a service.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    first: Option<Principal>,
    is_shared: bool,
}

record!(Sharing { first, is_shared });

impl Sharing {
    /// Notes that a principal uses the service. `is_sole` says that the settings let no other principal connect. Clients without
    /// a principal count as one, because nothing tells them apart.
    pub(super) fn note(&mut self, principal: &Principal, is_sole: bool) {
        let first = self.first.get_or_insert_with(|| principal.clone());
        let has_others = !is_sole && *principal != Principal::Nobody;
        self.is_shared |= has_others || first != principal;
    }

    /// What one principal may take of a limit: half of it if there are others.
    pub(super) fn share_of(&self, limit: usize) -> usize {
        if self.is_shared {
            limit.div_ceil(2)
        } else {
            limit
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_principal_gets_half_if_others_may_come() {
        let cases: [(&[(Principal, bool)], usize); 5] = [
            (&[(Principal::Token, true), (Principal::Token, true)], 5),
            (&[(Principal::Nobody, false), (Principal::Nobody, false)], 5),
            (&[(Principal::User(1), false)], 3),
            (&[(Principal::User(1), true), (Principal::User(2), true)], 3),
            (&[(Principal::Nobody, false), (Principal::Token, true)], 3),
        ];
        for (principals, share) in cases {
            let mut sharing = Sharing::default();
            for (principal, is_sole) in principals {
                sharing.note(principal, *is_sole);
            }
            assert_eq!(sharing.share_of(5), share, "{principals:?}");
            assert_eq!(sharing.share_of(1), 1);
        }
    }
}
