//! Files of another kind than their name says: a pointer, a web page, another format.

/// First bytes of a kind of file, and its name with a remedy. Letters count as small letters.
const KINDS: [(&[u8], &str); 14] = [
    (b"version https://git-lfs", "a pointer of Git LFS in place of the file; run `git lfs pull`, or download the file"),
    (b"<!doctype html", WEB_PAGE),
    (b"<html", WEB_PAGE),
    (b"<?xml", "an XML document, which a failed download leaves; download the file again"),
    (b"tjgg", OLD_GGML),
    (b"lmgg", OLD_GGML),
    (b"fmgg", OLD_GGML),
    (b"algg", "an old GGML adapter, from before GGUF; convert the adapter again with llama.cpp's scripts"),
    (b"pk\x03\x04", PICKLE),
    (b"\x80\x02\x8a\x0al\xfc\x9cf", PICKLE),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive; unpack it"),
    (b"\xfd7zxz\x00", "an xz archive; unpack it"),
    (b"\x89hdf\r\n", "an HDF5 file, which is not read; save the model as safetensors"),
];

const WEB_PAGE: &str = "a web page (HTML), which a failed download leaves; download the file again";
const OLD_GGML: &str = "an old GGML file (ggml, ggmf or ggjt), from before GGUF; download the model as GGUF, or convert \
                        the original model with llama.cpp's `convert_hf_to_gguf.py`";
const PICKLE: &str = "an archive as PyTorch writes it (`pytorch_model.bin`, `.pt`, `.pth`), which can run code when it is \
                      loaded and is not read; save the model as safetensors with transformers' `save_pretrained`";

/// The most bytes that [`foreign`] looks at.
pub(super) const LOOK: usize = 64;

/// The kind of a file and a remedy, if `start`, its first 64 bytes, are not those of weights, a configuration or a
/// tokenizer, but of a pointer of Git LFS, a web page, an archive or an older format.
///
/// ```
/// use disco_candle::weights::foreign;
///
/// assert!(foreign(b"version https://git-lfs.github.com/spec/v1\noid").unwrap().starts_with("a pointer of Git LFS"));
/// assert_eq!(foreign(b"{\"model_type\": \"llama\"}"), None);
/// ```
pub fn foreign(start: &[u8]) -> Option<&'static str> {
    // A safetensors file begins with the length of its header, which may look like anything.
    if start.get(8) == Some(&b'{') {
        return None;
    }
    let text = start.get(..LOOK).unwrap_or(start).trim_ascii_start().to_ascii_lowercase();
    KINDS.iter().find(|(begin, _)| text.starts_with(begin)).map(|(_, what)| *what)
}
