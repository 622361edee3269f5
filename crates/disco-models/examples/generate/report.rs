//! The figures on standard error.

use std::time::Duration;

use super::generate::Outcome;

/// Prints the figures of one session.
pub(crate) fn print(outcome: &Outcome) {
    let Outcome { prompt_tokens, tokens, loading, prompting, generating, workers } = outcome;
    let rate = |count: usize, time: &Duration| count as f64 / time.as_secs_f64().max(1e-9);
    eprintln!(
        "\nloading     {:.2} s, {:.1} MB read by {} workers",
        loading.as_secs_f64(),
        workers.iter().map(|worker| worker.bytes_read).sum::<u64>() as f64 / 1e6,
        workers.len()
    );
    eprintln!("prompt      {prompt_tokens} tokens, {:.1} tokens/s", rate(*prompt_tokens, prompting));
    let further = tokens.saturating_sub(1);
    eprintln!("generation  {tokens} tokens, {:.1} tokens/s", rate(further, generating));
    for (number, worker) in workers.iter().enumerate() {
        let share = |time: Duration| 100.0 * time.as_secs_f64() / worker.computing.as_secs_f64().max(1e-9);
        let collectives = match (worker.is_on_device, share(worker.in_collectives)) {
            (true, _) => "enqueued; a timeline (`DISCO_TRACE`) has their times".to_owned(),
            (_, time) if worker.waiting.is_zero() => {
                format!("took {time:.1} % of the time, including waits for other workers")
            }
            (_, time) => {
                format!("took {time:.1} % of the time, and waits for other workers {:.1} %", share(worker.waiting))
            }
        };
        eprintln!(
            "worker {number}    weights {:.1} MB, keys and values {:.1} MB, {:.1} MB read; {} collectives {collectives}",
            worker.weights as f64 / 1e6,
            worker.cache as f64 / 1e6,
            worker.bytes_read as f64 / 1e6,
            worker.collectives
        );
    }
}
