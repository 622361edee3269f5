//! The invitation of a worker of another session to a subset, as a node with one worker.

use std::fmt;

use disco_engine::token::Token;

/// The first word of the text of an invitation.
const NODE: &str = "node";
/// The data that a worker needs to join a subset as a node. It is a secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NodeInvitation {
    /// Number of the node in the subset.
    pub(super) node: u32,
    pub(super) encrypts: bool,
    pub(super) token: Token,
    /// Addresses of the controller, separated by commas.
    pub(super) addresses: String,
}

impl NodeInvitation {
    /// Parses the [text](Self::text) of an invitation.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        let (NODE, node, encrypts) = (next()?, next()?.parse().ok()?, next()?.parse().ok()?) else { return None };
        let (token, addresses) = (Token::new(next()?).ok()?, next()?.to_owned());
        next().is_none().then_some(Self { node, encrypts, token, addresses })
    }

    /// The invitation as text. Pass it on to this worker only: it is a secret.
    pub(super) fn text(&self) -> String {
        format!("{NODE} {} {} {} {}", self.node, self.encrypts, self.token.text(), self.addresses)
    }
}

impl fmt::Debug for NodeInvitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token.
        f.debug_struct("NodeInvitation").field("node", &self.node).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_parsed_from_its_text_and_other_texts_are_refused() {
        let token = Token::new("0123456789abcdef").unwrap();
        let invitation = NodeInvitation { node: 3, encrypts: true, token, addresses: "a:1,b:2".into() };
        assert_eq!(invitation.text(), "node 3 true 0123456789abcdef a:1,b:2");
        assert_eq!(NodeInvitation::parse(&invitation.text()).as_ref(), Some(&invitation));
        assert!(!format!("{invitation:?}").contains("0123"), "the token is a secret");
        for bad in ["", "node", "node 3 true 0123456789abcdef", "node 3 1 0123456789abcdef a:1", "3:disco-1f:00ff10"] {
            assert_eq!(NodeInvitation::parse(bad), None, "{bad}");
        }
    }
}
