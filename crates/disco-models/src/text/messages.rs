//! The messages of a chat, changed for a template.

use serde_json::Value as Json;

/// The role of instructions of a program, which some templates have apart from the system's.
pub(super) const DEVELOPER: &str = "developer";
pub(super) const SYSTEM: &str = "system";
const USER: &str = "user";

/// Messages with a mark at the end of some texts.
pub(super) struct Marked {
    pub(super) messages: Vec<Json>,
    /// The numbers of these messages, and their marks.
    pub(super) marks: Vec<(usize, String)>,
}

/// Messages with marks in all texts that neither users nor assistants say; `None` if there is none. A template can change a
/// text, but it shows the mark of each one that it does not leave out.
pub(super) fn marked(messages: &[Json]) -> Option<Marked> {
    let mut marked = Marked { messages: messages.to_vec(), marks: Vec::new() };
    for (index, message) in marked.messages.iter_mut().enumerate() {
        if message["role"] == "user" || message["role"] == "assistant" {
            continue;
        }
        if let Some(Json::String(text)) = message.get_mut("content").filter(|text| **text != "") {
            // Code points that Unicode never assigns.
            let mark = format!("\u{fdd0}{index}\u{fdd1}");
            text.push_str(&mark);
            marked.marks.push((index, mark));
        }
    }
    (!marked.marks.is_empty()).then_some(marked)
}

/// The mark of the end of the last message's text: code points that Unicode never assigns.
pub(super) const LAST: &str = "\u{fdd2}end\u{fdd3}";

/// Marks the end of the last message's text. Returns whether it is one of the assistant.
pub(super) fn mark_last(messages: &mut [Json]) -> bool {
    match messages.last_mut() {
        Some(last) if last["role"] == "assistant" => match last.get_mut("content") {
            Some(Json::String(text)) => {
                text.push_str(LAST);
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether an assistant has called a tool.
pub(super) fn have_calls(messages: &[Json]) -> bool {
    messages.iter().any(|message| message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()))
}

/// Gives the messages of one role another one.
pub(super) fn rename(messages: &mut [Json], from: &str, to: &str) {
    for role in messages.iter_mut().filter_map(|message| message.get_mut("role")).filter(|role| **role == from) {
        *role = to.into();
    }
}

/// The messages as strict templates have them: instructions in front are one message, others are a part of what the user says there, and
/// the user says one message at a time. `None` if that changes nothing.
pub(super) fn strict(messages: &[Json]) -> Option<Vec<Json>> {
    let instructs = |message: &Json| [SYSTEM, DEVELOPER].map(Json::from).contains(&message["role"]);
    let mut all: Vec<Json> = Vec::with_capacity(messages.len());
    let mut has_changed = false;
    for message in messages {
        let first_role = all.first().filter(|_| all.iter().all(instructs)).map(|first| first["role"].clone());
        let moves = instructs(message) && !all.is_empty();
        let mut message = message.clone();
        if moves {
            message["role"] = first_role.unwrap_or_else(|| USER.into());
        }
        match all.last_mut() {
            Some(last) if last["role"] == message["role"] && (moves || message["role"] == USER) => {
                join(last, &message)?;
                has_changed = true;
            }
            _ => all.push(message),
        }
        has_changed |= moves;
    }
    has_changed.then_some(all)
}

/// Adds the text of a message to that of another one; `None` if one of them has no text.
fn join(to: &mut Json, from: &Json) -> Option<()> {
    let joined = format!("{}\n\n{}", to["content"].as_str()?, from["content"].as_str()?);
    to["content"] = joined.into();
    Some(())
}

/// The messages with the arguments of calls as JSON texts; `None` if no call has an object.
pub(super) fn with_argument_texts(messages: &[Json]) -> Option<Vec<Json>> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
    let arguments = calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments"));
    let mut has_objects = false;
    for arguments in arguments.filter(|arguments| arguments.is_object()) {
        *arguments = super::json::line(arguments).into();
        has_objects = true;
    }
    has_objects.then_some(messages)
}
