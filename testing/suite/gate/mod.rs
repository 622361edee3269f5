//! Gates: worker functions wait at a gate until the test opens it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex};

static GATES: LazyLock<Mutex<HashMap<u64, Arc<Gate>>>> = LazyLock::new(Mutex::default);

/// A gate, which is closed at first. Worker functions find it by its id.
#[derive(Default)]
pub(crate) struct Gate {
    id: u64,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        let mut gates = GATES.lock().unwrap();
        let id = gates.len() as u64;
        let gate = Arc::new(Self { id, ..Self::default() });
        gates.insert(id, gate.clone());
        gate
    }

    pub(crate) fn find(id: u64) -> Arc<Self> {
        GATES.lock().unwrap()[&id].clone()
    }

    pub(crate) fn id(&self) -> i64 {
        self.id as i64
    }

    pub(crate) fn wait(&self) {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}
