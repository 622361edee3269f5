//! Functions of responses, which a chat has one level deeper. A function of a namespace has the namespace's name in front of its own.

use serde_json::{Value, json};

/// The functions among a request's tools, as a chat has them. Tools of other types are left out.
pub(super) fn functions(tools: &[Value]) -> Vec<Value> {
    let mut functions = Vec::with_capacity(tools.len());
    for tool in tools {
        match tool["type"].as_str() {
            Some("function") => functions.push(function(tool)),
            Some("namespace") => functions.extend(of_namespace(tool)),
            _ => {}
        }
    }
    functions
}

/// A function as a chat has it.
pub(super) fn function(tool: &Value) -> Value {
    let mut function = tool.clone();
    if let Some(function) = function.as_object_mut() {
        function.remove("type");
        if let Some(Value::String(namespace)) = function.remove("namespace") {
            let name = joined(Some(&namespace), function["name"].as_str().unwrap_or_default());
            function.insert("name".into(), name.into());
        }
    }
    json!({"type": "function", "function": function})
}

/// The functions of a namespace. The first one tells what the namespace is for.
fn of_namespace(namespace: &Value) -> Vec<Value> {
    let inner = namespace["tools"].as_array().into_iter().flatten().filter(|tool| tool["type"] == "function");
    let mut functions: Vec<_> = inner
        .map(|tool| {
            let mut tool = tool.clone();
            tool["namespace"] = namespace["name"].clone();
            function(&tool)
        })
        .collect();
    let about = namespace["description"].as_str().filter(|about| !about.is_empty());
    if let (Some(first), Some(about)) = (functions.first_mut(), about) {
        let own = first["function"]["description"].as_str().unwrap_or_default();
        first["function"]["description"] = format!("{about}\n\n{own}").trim_end().into();
    }
    functions
}

/// The name by which a chat has a function. Names of OpenAI's functions have no dot.
pub(super) fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}.{name}"))
}

/// The namespace and the name of a function, by its name in a chat with these tools.
pub(super) fn parted<'a>(tools: &'a Value, name: &'a str) -> (Option<&'a str>, &'a str) {
    let namespaces = tools.as_array().into_iter().flatten().filter(|tool| tool["type"] == "namespace");
    let mut parted = namespaces.filter_map(|tool| {
        let namespace = tool["name"].as_str()?;
        Some((namespace, name.strip_prefix(namespace)?.strip_prefix('.')?))
    });
    parted.next().map_or((None, name), |(namespace, name)| (Some(namespace), name))
}
