//! Which files of a repository are the model.

use super::name::is_inside;
use super::{HubError, HubName};

/// The files of a folder of safetensors beside the weights. A folder with the configuration of an adapter is refused when it
/// is opened.
const TEXTS: [&str; 8] = [
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
];

/// The end of the name of an index.
const INDEX: &str = ".safetensors.index.json";

/// The files of one model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The files of one GGUF model, sorted.
    Gguf(Vec<String>),
    /// A folder of safetensors.
    Folder {
        /// Its files, but for those that an index names.
        files: Vec<String>,
        /// Its index.
        index: Option<String>,
    },
}

impl Choice {
    /// The model among `listed` files.
    pub(super) fn of(listed: &[String], name: &HubName) -> Result<Self, HubError> {
        let mut listed: Vec<_> = listed.iter().filter(|file| is_inside(file)).cloned().collect();
        listed.sort();
        match name.file() {
            Some(part) => Self::gguf(&listed, part, name),
            None => Self::folder(&listed).map_or_else(|| Self::gguf(&listed, "", name), Ok),
        }
    }

    /// The safetensors, if there are any: those of an index, else `model.safetensors`, else all.
    fn folder(listed: &[String]) -> Option<Self> {
        let top = || listed.iter().filter(|file| !file.contains('/'));
        let index = top().find(|file| file.ends_with(INDEX)).cloned();
        let weights: Vec<_> = if index.is_some() {
            Vec::new()
        } else {
            let has_one = top().any(|file| file == "model.safetensors");
            let is_weights =
                |file: &&String| file.ends_with(".safetensors") && (!has_one || *file == "model.safetensors");
            top().filter(is_weights).cloned().collect()
        };
        if index.is_none() && weights.is_empty() {
            return None;
        }
        let texts = listed.iter().filter(|file| TEXTS.contains(&file.as_str())).cloned();
        Some(Self::Folder { files: texts.chain(weights).chain(index.clone()).collect(), index })
    }

    /// The one GGUF model whose name has `part` in it, in any case.
    fn gguf(listed: &[String], part: &str, name: &HubName) -> Result<Self, HubError> {
        let part = part.to_lowercase();
        let is_chosen = |file: &&String| file.ends_with(".gguf") && file.to_lowercase().contains(&part);
        let files: Vec<_> = listed.iter().filter(is_chosen).cloned().collect();
        let mut models: Vec<_> = files.iter().map(|file| model_of(file)).collect();
        models.dedup();
        match models[..] {
            [_] => Ok(Self::Gguf(files)),
            [] => Err(HubError::NoModel { name: name.clone(), found: listed.to_vec() }),
            [..] => {
                Err(HubError::Several { name: name.clone(), found: models.into_iter().map(str::to_owned).collect() })
            }
        }
    }

    /// The files that the listing names.
    pub(super) fn files(&self) -> &[String] {
        match self {
            Self::Gguf(files) | Self::Folder { files, .. } => files,
        }
    }

    /// The index, whose files are of the model, too.
    pub(super) fn index(&self) -> Option<&str> {
        match self {
            Self::Gguf(_) => None,
            Self::Folder { index, .. } => index.as_deref(),
        }
    }

    /// The path to open, relative to the folder of the commit.
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Gguf(files) => &files[0],
            Self::Folder { .. } => "",
        }
    }
}

/// The name of a GGUF file, or that of the model of which it is one of several files: `PREFIX-00001-of-00003.gguf`.
fn model_of(file: &str) -> &str {
    let split = || {
        let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(number) && is_number(count)).then_some(prefix)
    };
    split().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(listed: &[&str], name: &str) -> Result<Choice, HubError> {
        let listed: Vec<_> = listed.iter().map(|&file| file.to_owned()).collect();
        Choice::of(&listed, &name.parse().unwrap())
    }

    #[test]
    fn safetensors_of_an_index_are_preferred_to_others() {
        let listed = [
            "config.json",
            "consolidated.safetensors",
            "model-1.safetensors",
            "model.safetensors.index.json",
            "README.md",
            "../x.json",
        ];
        let choice = chosen(&listed, "a/b").unwrap();
        assert_eq!(choice.files(), ["config.json", "model.safetensors.index.json"]);
        assert_eq!((choice.index(), choice.path()), (Some("model.safetensors.index.json"), ""));
        let choice =
            chosen(&["model.safetensors", "consolidated.safetensors", "onnx/model.safetensors"], "a/b").unwrap();
        assert_eq!(choice.files(), ["model.safetensors"]);
        let choice = chosen(&["b.safetensors", "a.safetensors", "tokenizer.json"], "a/b").unwrap();
        assert_eq!(choice.files(), ["tokenizer.json", "a.safetensors", "b.safetensors"]);
    }

    #[test]
    fn one_of_several_gguf_models_is_chosen_by_a_part_of_its_name() {
        let listed = ["m-Q4_0.gguf", "m-Q4_K_M.gguf", "big/m-F16-00002-of-00002.gguf", "big/m-F16-00001-of-00002.gguf"];
        assert_eq!(chosen(&listed, "a/b:q4_k_m").unwrap(), Choice::Gguf(vec!["m-Q4_K_M.gguf".to_owned()]));
        let split = chosen(&listed, "a/b:F16").unwrap();
        assert_eq!((split.files().len(), split.path()), (2, "big/m-F16-00001-of-00002.gguf"));
        let error = chosen(&listed, "a/b").unwrap_err().to_string();
        assert!(error.contains("has several models: big/m-F16, m-Q4_0.gguf, m-Q4_K_M.gguf"), "{error}");
        assert!(error.contains("`a/b:Q4_0`"), "{error}");
        let error = chosen(&listed, "a/b:Q8_0").unwrap_err().to_string();
        assert!(error.starts_with("a/b:Q8_0: there is no such model in the repository"), "{error}");
    }

    #[test]
    fn names_are_owner_and_repository() {
        for wrong in ["a", "a/b/c", "/a", "a/", "./a", "../b", "a b/c", "a/b:", "a/b.gguf/", "~/b"] {
            assert!(matches!(wrong.parse::<HubName>(), Err(HubError::Name(_))), "{wrong}");
        }
        let name: HubName = "HuggingFaceTB/SmolLM2-135M_1.0:Q8_0".parse().unwrap();
        assert_eq!((name.repository(), name.file()), ("HuggingFaceTB/SmolLM2-135M_1.0", Some("Q8_0")));
    }
}
