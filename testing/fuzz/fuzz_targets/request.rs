//! The body of a request to the server, and the headers of its trace: refused, or within the limits. None makes a panic.

#![no_main]

use std::convert::Infallible;

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Infallible> {
    disco_serve::fuzzing::body(bytes);
    disco_serve::fuzzing::context(bytes);
    disco_serve::fuzzing::parts(bytes);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let bodies = [
        r#"{"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": true, "stop": ["x", "y"], "seed": 7, "n": 2}"#,
        r#"{"prompt": [[1, 2], [3]], "logit_bias": {"5": -1.5}, "stop_token_ids": [2], "min_tokens": 1, "ignore_eos": true}"#,
        r#"{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
            "stream": true, "stream_options": {"include_usage": true}, "temperature": 0.5, "top_p": 0.9, "top_k": 4,
            "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "top_logprobs": 2,
            "logprobs": true, "chat_template_kwargs": {"x": 1}, "cache_salt": "s"}"#,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\na=1,b=2",
    ];
    bodies.map(|body| body.as_bytes().to_vec()).into()
}
