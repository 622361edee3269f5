//! The code of a process, with its unwind tables.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::UnwindRegsAarch64;
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::UnwindRegsX86_64;
use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, Unwinder as _, UnwinderNative,
};
use nix::libc::user_regs_struct;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, SegmentFlags, elf};

use super::maps::{Mapping, Maps};

/// Most frames of one stack.
const MAX_FRAMES: usize = 512;

/// The registers that unwinding begins with.
pub(super) struct Registers {
    counter: u64,
    #[cfg(target_arch = "x86_64")]
    rest: UnwindRegsX86_64,
    #[cfg(target_arch = "aarch64")]
    rest: UnwindRegsAarch64,
}

#[cfg(target_arch = "x86_64")]
impl Registers {
    pub(super) fn of(registers: &user_regs_struct) -> Self {
        let rest = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
        Self { counter: registers.rip, rest }
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    pub(super) fn of(registers: &user_regs_struct) -> Self {
        let [frame, link] = [registers.regs[29], registers.regs[30]];
        Self { counter: registers.pc, rest: UnwindRegsAarch64::new(link, registers.sp, frame) }
    }
}

impl Registers {
    pub(super) fn stack_pointer(&self) -> u64 {
        self.rest.sp()
    }
}

/// The state of a thread at one moment.
pub(super) struct Snapshot {
    pub(super) registers: Registers,
    /// The stack from the stack pointer on.
    pub(super) stack: Vec<u8>,
}

/// The code of one process.
#[derive(Default)]
pub(super) struct Modules {
    unwinder: UnwinderNative<Arc<[u8]>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// For each mapping that was added, the difference of its addresses from the addresses in its file.
    offsets: HashMap<u64, u64>,
    files: HashMap<PathBuf, Option<Tables>>,
}

/// The parts of a file that unwinding needs.
struct Tables {
    /// Range in the file, and address, of each part that is loaded.
    segments: Vec<(Range<u64>, u64)>,
    text: Option<Range<u64>>,
    eh_frame: Section,
    eh_frame_hdr: Section,
    debug_frame: Section,
}

type Section = Option<(Range<u64>, Arc<[u8]>)>;

impl Modules {
    /// Adds the code that the process has mapped since the last call.
    pub(super) fn update(&mut self, maps: &Maps) {
        for mapping in maps.code().filter(|mapping| !mapping.name.is_empty()) {
            let Some(path) = &mapping.path else { continue };
            if self.offsets.contains_key(&mapping.range.start) {
                continue;
            }
            let tables = self.files.entry(path.clone()).or_insert_with(|| Tables::read(path));
            let Some(tables) = tables else { continue };
            let Some(address) = tables.address(mapping.offset) else { continue };
            let offset = mapping.range.start.wrapping_sub(address);
            self.offsets.insert(mapping.range.start, offset);
            let (name, range) = (mapping.name.clone(), mapping.range.clone());
            self.unwinder.add_module(Module::new(name, range, offset, tables.info()));
        }
    }

    /// The difference of a mapping's addresses from the addresses in its file, if it was added.
    pub(super) fn offset(&self, mapping: &Mapping) -> Option<u64> {
        self.offsets.get(&mapping.range.start).copied()
    }

    /// An address in each function that the thread is inside, the innermost first.
    pub(super) fn unwind(&mut self, snapshot: &Snapshot) -> Vec<u64> {
        let Registers { counter, rest } = &snapshot.registers;
        let start = snapshot.registers.stack_pointer();
        let mut read = |address: u64| {
            let at = usize::try_from(address.checked_sub(start).ok_or(())?).map_err(|_| ())?;
            let word = snapshot.stack.get(at..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_ne_bytes(*word))
        };
        let mut frames = self.unwinder.iter_frames(*counter, *rest, &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        // An error ends the stack; the frames found so far are still of use.
        while let Ok(Some(frame)) = frames.next()
            && addresses.len() < MAX_FRAMES
        {
            addresses.push(frame.address_for_lookup());
        }
        addresses
    }
}

impl Tables {
    /// `None` if the file can't be read or is no ELF file: its code is unwound by frame pointers.
    fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let section = |name: &str| -> Section {
            let section = file.section_by_name(name)?;
            let (address, data) = (section.address(), section.uncompressed_data().ok()?);
            Some((address..address.wrapping_add(section.size()), data.as_ref().into()))
        };
        let is_code = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags & elf::PF_X != 0);
        let segments = file.segments().filter(|segment| is_code(segment.flags())).map(|segment| {
            let (start, size) = segment.file_range();
            (start..start.saturating_add(size), segment.address())
        });
        let text = file.section_by_name(".text").map(|text| text.address()..text.address().wrapping_add(text.size()));
        let [eh_frame, eh_frame_hdr, debug_frame] = [".eh_frame", ".eh_frame_hdr", ".debug_frame"].map(section);
        Some(Self { segments: segments.collect(), text, eh_frame, eh_frame_hdr, debug_frame })
    }

    /// The address of a page that is mapped from `offset` of the file.
    fn address(&self, offset: u64) -> Option<u64> {
        // A segment begins somewhere in its first page.
        const PAGE: u64 = 64 << 10;
        let is_in = |range: &Range<u64>| offset.saturating_add(PAGE) > range.start && offset < range.end;
        // The segment with the nearest start, as several may begin in one page.
        let fitting = self.segments.iter().filter(|(range, _)| is_in(range));
        let (range, address) = fitting.min_by_key(|(range, _)| range.start.abs_diff(offset))?;
        Some(address.wrapping_sub(range.start).wrapping_add(offset))
    }

    fn info(&self) -> ExplicitModuleSectionInfo<Arc<[u8]>> {
        let range = |section: &Section| section.as_ref().map(|(range, _)| range.clone());
        let data = |section: &Section| section.as_ref().map(|(_, data)| data.clone());
        ExplicitModuleSectionInfo {
            text_svma: self.text.clone(),
            eh_frame_svma: range(&self.eh_frame),
            eh_frame: data(&self.eh_frame),
            eh_frame_hdr_svma: range(&self.eh_frame_hdr),
            eh_frame_hdr: data(&self.eh_frame_hdr),
            debug_frame: data(&self.debug_frame),
            ..ExplicitModuleSectionInfo::default()
        }
    }
}
