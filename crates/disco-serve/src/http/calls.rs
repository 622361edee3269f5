//! What clients get of the calls of a text.

use crate::api::Called;

/// The calls of a text so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    count: usize,
    /// The id and the name of the call that grows.
    open: Option<(String, String)>,
    /// Whether ids have nine letters and digits.
    has_short_ids: bool,
    /// Whether the client has chosen the tool, so that a call is nothing that the text ends with.
    is_named: bool,
}

impl Calls {
    pub(super) fn new(has_short_ids: bool, is_named: bool) -> Self {
        Self { has_short_ids, is_named, ..Self::default() }
    }

    /// Whether a text that ends by itself ends with calls. One that is not complete is none.
    pub(super) fn end_a_text(&self) -> bool {
        self.count > 0 && self.open.is_none() && !self.is_named
    }

    /// The first part of the next call.
    pub(super) fn begin(&mut self, name: String, random: u64) -> Option<Called> {
        self.open = Some((call_id(random, self.has_short_ids), name));
        self.count += 1;
        self.part(String::new()).map(|part| Called { begins: true, ..part })
    }

    /// A part of the call that grows.
    pub(super) fn part(&self, arguments: String) -> Option<Called> {
        let (id, name) = self.open.clone()?;
        Some(Called { index: self.count.saturating_sub(1), id, name, arguments, begins: false, ends: false })
    }

    /// The last part of the call that grows.
    pub(super) fn end(&mut self) -> Option<Called> {
        let last = self.part(String::new()).map(|part| Called { ends: true, ..part });
        self.open = None;
        last
    }
}

/// An id for a call. A template of Mistral demands nine letters and digits.
fn call_id(random: u64, is_short: bool) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
    if !is_short {
        return format!("call_{random:016x}");
    }
    (0..9).map(|place| char::from(LETTERS[(random >> (5 * place)) as usize % LETTERS.len()])).collect()
}
