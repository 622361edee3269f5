//! Opening a file of GGUF takes little more memory than its header has bytes, whatever the header is made of.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use disco_candle::weights::Weights;

/// Counts the bytes that are allocated now, and the most so far.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

#[allow(unsafe_code, reason = "an allocator")]
// SAFETY: every call is forwarded to the system allocator, which upholds the contract. `realloc` is the trait's own, which moves
// all memory, so that both blocks count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller upholds the contract of the method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of the method.
        unsafe { System.dealloc(block, layout) }
    }
}

const UINT8: u32 = 0;
const INT32: u32 = 5;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A header of version 3 with these entries of the metadata and tensors.
fn header(tensors: &[Vec<u8>], metadata: &[Vec<u8>]) -> Vec<u8> {
    let counts = [tensors.len(), metadata.len()].map(|count| (count as u64).to_le_bytes()).concat();
    [&b"GGUF\x03\0\0\0"[..], &counts, &metadata.concat(), &tensors.concat()].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// An entry that is an array of `len` equal elements.
fn array(kind: u32, len: usize, element: &[u8]) -> Vec<u8> {
    let of = [ARRAY.to_le_bytes(), kind.to_le_bytes()].concat();
    [string("k"), of, (len as u64).to_le_bytes().to_vec(), element.repeat(len)].concat()
}

fn tensor(name: &str, dims: &[u64]) -> Vec<u8> {
    let dims =
        [&(dims.len() as u32).to_le_bytes()[..], &dims.iter().flat_map(|dim| dim.to_le_bytes()).collect::<Vec<_>>()];
    [string(name), dims.concat(), [0; 12].to_vec()].concat()
}

// One test, because the counters are those of the process.
#[test]
fn a_header_takes_less_than_four_times_its_bytes() {
    let flag = |number: usize| [string(&format!("{number:x}")), BOOL.to_le_bytes().to_vec(), vec![1]].concat();
    let flags: Vec<_> = (0..60_000).map(flag).collect();
    let tensors: Vec<_> = (0..60_000).map(|number| tensor(&format!("{number:x}"), &[0])).collect();
    let shapes: Vec<_> = (0..30_000).map(|number| tensor(&format!("{number:x}"), &[0, 1, 1, 1])).collect();
    let empty = [UINT8.to_le_bytes().to_vec(), vec![0; 8]].concat();
    let headers = [
        ("numbers of a byte", header(&[], &[array(UINT8, 2_000_000, &[1])])),
        ("numbers of four bytes", header(&[], &[array(INT32, 500_000, &[1, 0, 0, 0])])),
        ("empty texts", header(&[], &[array(STRING, 250_000, &[0; 8])])),
        ("texts", header(&[], &[array(STRING, 150_000, &string("token"))])),
        ("empty arrays", header(&[], &[array(ARRAY, 150_000, &empty)])),
        ("flags", header(&[], &flags)),
        ("tensors", header(&tensors, &[])),
        ("tensors with dimensions", header(&shapes, &[])),
        ("both", header(&tensors, &flags)),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (name, header) in headers {
        std::fs::write(&path, &header).unwrap();
        let before = NOW.load(Relaxed);
        PEAK.store(before, Relaxed);
        let weights = Weights::open(&path).unwrap();
        let peak = PEAK.load(Relaxed) - before;
        assert!(peak < 4 * header.len(), "{name}: {peak} bytes for a header of {}", header.len());
        println!("{name}: {:.2} times", peak as f64 / header.len() as f64);
        drop(weights);
    }
}
