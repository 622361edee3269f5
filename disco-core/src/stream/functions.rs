//! The worker functions that a session has looked up.

use std::collections::HashMap;
use std::sync::Arc;

use super::DRef;
use crate::id::RegisterId;

/// The handles of looked-up functions by name.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// Functions of this epoch.
    known: HashMap<String, DRef>,
    /// Functions of earlier epochs that the program still has handles of.
    older: Vec<(String, DRef)>,
}

impl Functions {
    /// The handle of the function of this name, if this epoch has looked it up.
    pub(super) fn get(&self, name: &str) -> Option<&DRef> {
        self.known.get(name)
    }

    pub(super) fn insert(&mut self, name: &str, handle: DRef) {
        self.known.insert(name.to_owned(), handle);
    }

    /// From now on, functions are looked up anew: a lookup that was skipped left its register poisoned.
    pub(super) fn begin_epoch(&mut self) {
        self.older.extend(self.known.drain());
        self.older.retain(|(_, handle)| handle.is_shared());
    }

    /// Names and registers of all functions that the program may use.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Arc<str>, RegisterId)> {
        self.handles().map(|(name, handle)| (name.as_str().into(), handle.register()))
    }

    /// The name of the function in a register. Takes time in proportion to the number of functions.
    pub(super) fn name_of(&self, register: RegisterId) -> Option<&str> {
        self.handles().find(|(_, handle)| handle.register() == register).map(|(name, _)| name.as_str())
    }

    fn handles(&self) -> impl Iterator<Item = (&String, &DRef)> {
        self.known.iter().chain(self.older.iter().map(|(name, handle)| (name, handle)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::dref::FreedIds;
    use super::*;

    #[test]
    fn functions_of_earlier_epochs_are_kept_while_the_program_has_handles() {
        let freed_ids = Arc::new(FreedIds::default());
        let handle = |register: u32| DRef::new(register.into(), 1, &freed_ids);
        let mut functions = Functions::default();
        let kept = handle(1);
        functions.insert("kept", kept.clone());
        functions.insert("dropped", handle(2));
        functions.begin_epoch();
        assert!(functions.get("kept").is_none() && functions.get("dropped").is_none());
        functions.insert("kept", handle(3));
        let mut all: Vec<_> = functions.all().collect();
        all.sort();
        assert_eq!(all, [("kept".into(), 1.into()), ("kept".into(), 3.into())]);
        assert_eq!((functions.name_of(1.into()), functions.name_of(2.into())), (Some("kept"), None));
        assert_eq!(freed_ids.take_freed().len(), 1, "the register of `dropped`");
        drop(kept);
        functions.begin_epoch();
        assert_eq!(functions.all().count(), 0);
    }
}
