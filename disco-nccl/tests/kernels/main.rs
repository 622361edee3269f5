//! The source of the kernels: its layouts, its compilation by NVRTC, and its execution by threads.

mod layout;
mod nvrtc;
mod tsan;
