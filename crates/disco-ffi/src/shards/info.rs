//! How parameters are sharded: a list of functions for each.
//!
//! ```text
//! {"param_0": [["function", [[2, 4, 8], "float32"], 1, 2], …], …}
//! ```
//!
//! A function is called as `function(weights, 1, 2, out)`, and `out` has the shape and the dtype of the list. The first
//! extent of the last function's shape is the number of workers.

use std::collections::HashMap;

use disco_core::{DType, Error, Result, Shape};
use serde_json::Value as Json;

use super::cache::dtype;

/// One step of a parameter's sharding.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub(super) function: String,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    /// The ints between input and output.
    pub(super) params: Vec<i64>,
}

/// The steps of each parameter that is sharded.
pub(super) type Info = HashMap<String, Vec<Step>>;

/// Parses the text. An empty text has no parameters.
///
/// # Errors
/// The shard info is invalid; the error names the parameter.
pub(super) fn parse(text: &str) -> Result<Info> {
    if text.trim().is_empty() {
        return Ok(Info::new());
    }
    let wrong = |error: serde_json::Error| Error::invalid(format!("shard info: {error}"));
    let lists: HashMap<String, Vec<Json>> = serde_json::from_str(text).map_err(wrong)?;
    let steps = lists.into_iter().map(|(name, list)| {
        let steps: Option<Vec<Step>> = list.iter().map(step).filter(|_| !list.is_empty()).collect();
        let what = "its steps are not `[function, [shape, dtype], int…]`";
        let steps = steps.ok_or_else(|| Error::invalid(format!("shard info: parameter `{name}`: {what}")))?;
        Ok((name, steps))
    });
    steps.collect()
}

fn step(json: &Json) -> Option<Step> {
    let [function, output, params @ ..] = json.as_array()?.as_slice() else { return None };
    let [shape, element] = output.as_array()?.as_slice() else { return None };
    let ints = |list: &[Json]| list.iter().map(Json::as_i64).collect::<Option<Vec<_>>>();
    let shape = Shape::from(&ints(shape.as_array()?)?[..]);
    shape.elements()?;
    Some(Step {
        function: function.as_str()?.to_owned(),
        shape,
        dtype: dtype(element.as_str()?)?,
        params: ints(params)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_function_an_output_and_ints() {
        let info = parse(r#"{"w": [["cut", [[2, 4], "float16"], 1, -2]], "b": []}"#).unwrap();
        let step = Step { function: "cut".into(), shape: Shape::from([2, 4]), dtype: DType::F16, params: vec![1, -2] };
        assert_eq!(info["w"], [step]);
        assert!(info["b"].is_empty());
        assert!(parse(" ").unwrap().is_empty());
    }

    #[test]
    fn damaged_shard_info_is_an_error_with_the_parameter() {
        for text in [
            r#"{"w": [[]]}"#,
            r#"{"w": [["cut"]]}"#,
            r#"{"w": [[1, [[2], "float16"]]]}"#,
            r#"{"w": [["cut", [[2], "half"]]]}"#,
            r#"{"w": [["cut", [[2.5], "float16"]]]}"#,
            r#"{"w": [["cut", [[-2], "float16"]]]}"#,
            r#"{"w": [["cut", [[2], "float16"], "x"]]}"#,
            r#"{"w": [["cut", [[2], "float16", 3]]]}"#,
        ] {
            let error = parse(text).unwrap_err().to_string();
            let expected = "shard info: parameter `w`: its steps are not `[function, [shape, dtype], int…]`";
            assert_eq!(error, expected, "{text}");
        }
        assert!(parse("[1]").unwrap_err().to_string().starts_with("shard info: invalid type"));
    }
}
