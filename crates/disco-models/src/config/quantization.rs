//! How weights are quantised: the key `quantization_config`.

use serde_json::Value as Json;

use super::json;
use crate::error::ModelError;

/// How matrices of layers are packed in 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packing {
    /// AutoAWQ's `gemm`.
    Awq {
        /// Inputs with one scale; `None`: all.
        group: Option<usize>,
    },
    /// GPTQ.
    Gptq {
        /// Inputs with one scale; `None`: all.
        group: Option<usize>,
        /// Whether zero points are stored as they are.
        v2: bool,
    },
    /// Integers of compressed-tensors, `pack-quantized`.
    Int4 {
        /// Inputs with one scale; `None`: all.
        group: Option<usize>,
        /// Whether there are no zero points.
        symmetric: bool,
    },
    /// MXFP4 of compressed-tensors: E2M1, and a power of two for 32 inputs.
    Mxfp4,
    /// NVFP4: E2M1, a scale of E4M3 for 16 inputs, and one for the whole matrix.
    Nvfp4 {
        /// Whether the scale of the whole divides (compressed-tensors) or multiplies (ModelOpt).
        divides: bool,
    },
    /// bitsandbytes' nf4.
    Nf4,
}

/// How weights are quantised.
#[derive(Debug, Default)]
pub(crate) struct Quantization {
    /// The block of weights of 8 bits that has one scale, if it is known.
    pub(crate) scale_block: Option<[usize; 2]>,
    pub(crate) packing: Option<Packing>,
}

impl Quantization {
    /// # Errors
    /// The weights are quantised in a way that is not supported: all but 8-bit floats (E4M3), and the 4 bits of [`Packing`].
    /// Where activations are quantised while they are computed, that is not done here, and costs no precision to leave out.
    pub(crate) fn from_json(json: &Json) -> Result<Self, ModelError> {
        let config = &json["quantization_config"];
        let refuse = |what: String| {
            let feature = format!("quantised weights (quantization_config, {}{what})", config["quant_method"]);
            Err(ModelError::Feature { feature })
        };
        let packed = |packing| Ok(Self { packing: Some(packing), ..Self::default() });
        let is = |key: &str, value: &str| config[key] == value;
        let unless = |condition: bool, key: &str, packing| {
            if condition { packed(packing) } else { refuse(format!(", {key} {}", config[key])) }
        };
        match config["quant_method"].as_str() {
            None if config.is_null() => Ok(Self::default()),
            Some("fp8" | "fbgemm_fp8") if is("activation_scheme", "static") => {
                refuse(", activation_scheme static".into())
            }
            Some("fp8" | "fbgemm_fp8") => Ok(Self { scale_block: scale_block(config)?, packing: None }),
            Some("awq" | "gptq") if config["bits"] != 4 => refuse(format!(", bits {}", config["bits"])),
            Some("awq") if config["zero_point"] == false => refuse(", zero_point false".into()),
            Some("awq") => {
                let is_gemm = config["version"].as_str().is_none_or(|version| version.eq_ignore_ascii_case("gemm"));
                unless(is_gemm, "version", Packing::Awq { group: group(config)? })
            }
            Some("gptq") => {
                let format = config["checkpoint_format"].as_str().unwrap_or("gptq");
                let packing = Packing::Gptq { group: group(config)?, v2: format == "gptq_v2" };
                unless(["gptq", "gptq_v2"].contains(&format), "checkpoint_format", packing)
            }
            Some("compressed-tensors") if !config["kv_cache_scheme"].is_null() => refuse(", kv_cache_scheme".into()),
            Some("compressed-tensors") => match config["format"].as_str() {
                Some("float-quantized") => Ok(Self::default()),
                Some("mxfp4-pack-quantized") => packed(Packing::Mxfp4),
                Some("nvfp4-pack-quantized") => packed(Packing::Nvfp4 { divides: true }),
                Some("pack-quantized") => packed(integers(config)?),
                _ => refuse(format!(", format {}", config["format"])),
            },
            Some("modelopt") if !config["kv_cache_scheme"].is_null() => refuse(", kv_cache_scheme".into()),
            Some("modelopt") => unless(is("quant_algo", "NVFP4"), "quant_algo", Packing::Nvfp4 { divides: false }),
            Some("bitsandbytes") if config["load_in_4bit"] != true => refuse(", not load_in_4bit".into()),
            Some("bitsandbytes") => unless(is("bnb_4bit_quant_type", "nf4"), "bnb_4bit_quant_type", Packing::Nf4),
            // The experts of gpt-oss, whose tensors say it themselves.
            Some("mxfp4") => Ok(Self::default()),
            _ => refuse(String::new()),
        }
    }
}

/// The block of weights of 8 bits that has one scale.
fn scale_block(config: &Json) -> Result<Option<[usize; 2]>, ModelError> {
    let sizes = &config["weight_block_size"];
    let wrong = || Err(json::wrong("quantization_config.weight_block_size", "two sizes", sizes));
    match sizes.as_array().map(Vec::as_slice) {
        None => Ok(None),
        Some([rows, columns]) => match (rows.as_u64(), columns.as_u64()) {
            (Some(rows @ 1..), Some(columns @ 1..)) => Ok(Some([rows as usize, columns as usize])),
            _ => wrong(),
        },
        _ => wrong(),
    }
}

/// The number of inputs with one scale; `None` for −1 and `null`, which are all of them.
fn group(config: &Json) -> Result<Option<usize>, ModelError> {
    match &config["group_size"] {
        Json::Null => Ok(None),
        size if size.as_i64() == Some(-1) => Ok(None),
        size => match size.as_u64() {
            Some(size @ 1..) => Ok(Some(size as usize)),
            _ => Err(json::wrong("quantization_config.group_size", "a size", size)),
        },
    }
}

/// The integers of compressed-tensors, which are the same in all groups of layers.
fn integers(config: &Json) -> Result<Packing, ModelError> {
    let refuse = |what: String| {
        Err(ModelError::Feature { feature: format!("quantised weights (quantization_config, pack-quantized, {what})") })
    };
    let mut found = None;
    for (name, of_group) in config["config_groups"].as_object().into_iter().flatten() {
        let weights = &of_group["weights"];
        if weights["num_bits"] != 4 || weights["type"] != "int" {
            return refuse(format!("{} bits of type {} in {name}", weights["num_bits"], weights["type"]));
        }
        if weights["actorder"] == "group" || !of_group["input_activations"].is_null() {
            return refuse(format!("actorder or input_activations in {name}"));
        }
        let packing = Packing::Int4 { group: group(weights)?, symmetric: weights["symmetric"] != false };
        if found.replace(packing).is_some_and(|other| other != packing) {
            return refuse("config_groups that differ".into());
        }
    }
    found.map_or_else(|| refuse("no config_groups".into()), Ok)
}
