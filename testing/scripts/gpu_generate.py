#!/usr/bin/env python3
"""Runs Disco's example `generate` on a model folder of gpu_models.py, and compares or measures.

  gpu_generate.py reference MODEL COMMAND...   writes MODEL/reference.json from the tokens and logits of COMMAND
  gpu_generate.py texts MODEL COMMAND...       compares the tokens and logits of COMMAND with MODEL/reference.json
  gpu_generate.py speed MODEL FILE COMMAND...  prints the figures for the prompt in MODEL/FILE
  gpu_generate.py killed MODEL COMMAND...      ends a worker process with SIGKILL while it generates: the text must be that of
                                               an undisturbed run
  gpu_generate.py refused TEXT COMMAND...      COMMAND must fail with an error that has TEXT

COMMAND is the program and its options; the model and the prompts are added. The last line of the output is the result.
LIMIT: seconds after which a run counts as hanging. Then the stacks of its threads are printed, if DISCO names the command `disco`.
"""
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT = float(os.environ.get("LIMIT", "60"))
# Words of the text before a worker is killed.
WORDS_BEFORE_KILL = 20
# Largest difference of logits that counts as rounding.
TOLERANCE = 1e-3


class Run:
    """A process whose output is read as it comes."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.out, self.err, self.start = b"", b"", time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ, "out")
        self.selector.register(self.process.stderr, selectors.EVENT_READ, "err")

    def read_until(self, is_enough):
        """Reads until `is_enough()` holds or the output ends. Returns whether it holds."""
        while not is_enough():
            if not self.selector.get_map():
                return False
            if time.monotonic() - self.start > LIMIT:
                self.show_hang()
            for key, _ in self.selector.select(timeout=1):
                data = os.read(key.fd, 1 << 16)
                setattr(self, key.data, getattr(self, key.data) + data)
                if not data:
                    self.selector.unregister(key.fileobj)
        return True

    def end(self):
        """Reads the rest. Returns the exit code."""
        self.read_until(lambda: False)
        return self.process.wait()

    def children(self):
        """The child processes of the controller."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = stat.read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if parent == str(self.process.pid):
                found.append(int(stat.parent.name))
        return found

    def show_hang(self):
        print(self.out.decode(errors="replace"), self.err.decode(errors="replace"), sep="\n", flush=True)
        disco = os.environ.get("DISCO")
        for process in [self.process.pid] + self.children() if disco else []:
            subprocess.run([disco, "status", str(process), "--stacks"], timeout=20, check=False)
        self.process.kill()
        sys.exit(f"no end within {LIMIT:.0f} s")


def finished(command):
    """The output of a command that must succeed."""
    run = Run(command)
    code = run.end()
    out, err = run.out.decode(errors="replace"), run.err.decode(errors="replace")
    print(out, err, sep="\n")
    if code != 0:
        sys.exit(f"exit code {code}: {errors(err)}")
    return out, err


def errors(err):
    """The errors of `generate` in one line, or the first line of another error."""
    lines = [line for line in err.splitlines() if line.strip()]
    return " | ".join([line for line in lines if "generate: " in line] or lines[:1])


def lines_of(text, name):
    """The JSON values of lines such as `tokens [1, 2]`."""
    return [json.loads(line[len(name):]) for line in text.splitlines() if line.startswith(f"{name} [")]


def answers(model, command):
    """The tokens of each text, the largest logits of each prompt, and the figures."""
    out, err = finished([*command, "--raw", "--model", str(model), "--prompt-file", str(model / "prompts.txt"),
                         "--print-tokens", "--print-logits", "10"])
    return lines_of(out, "tokens"), lines_of(err, "logits"), rates(err)


def rates(err):
    """The figures on standard error in one line."""
    starts = ("loading ", "prompt ", "generation ", "worker 0 ")
    return "; ".join(" ".join(line.split()) for line in err.splitlines() if line.startswith(starts))


def reference(model, command):
    tokens, logits, figures = answers(model, command)
    prompts = [dict(tokens=own, gaps=[], logits=largest) for own, largest in zip(tokens, logits)]
    (model / "reference.json").write_text(json.dumps(dict(prompts=prompts)))
    print(f"{len(prompts)} texts of {len(tokens[0]) if tokens else 0} tokens; {figures}")
    return bool(prompts)


def first_difference(own, reference):
    tokens, gaps = reference["tokens"], reference["gaps"]
    at = next((at for at, pair in enumerate(zip(own, tokens)) if pair[0] != pair[1]), min(len(own), len(tokens)))
    gap = f", where the two largest logits differ by {gaps[at]:.6f}" if at < len(gaps) else ""
    return f"first difference at token {at} of {len(own)}{gap}"


def largest_difference(logits, expected):
    """The largest difference of the logits of tokens that both have, and the number of tokens that are missing."""
    largest, missing = 0.0, 0
    for own, reference in zip(logits, expected):
        values = dict(map(tuple, own))
        common = [abs(values[token] - logit) for token, logit in reference["logits"] if token in values]
        largest = max([largest, *common])
        # The last of the ten may be another token.
        missing += max(0, len(reference["logits"]) - 1 - len(common))
    return largest, missing


def texts(model, command):
    expected = json.loads((model / "reference.json").read_text())["prompts"]
    tokens, logits, figures = answers(model, [*command, "--max-tokens", str(len(expected[0]["tokens"]))])
    notes, equal = [], 0
    for number, (own, reference) in enumerate(zip(tokens, expected)):
        if own == reference["tokens"]:
            equal += 1
        else:
            notes.append(f"prompt {number}: {first_difference(own, reference)}")
    largest, missing = largest_difference(logits, expected)
    notes.append(f"logits of {len(logits)} prompts differ by at most {largest:.6f}, {missing} of the largest are missing")
    print(f"{equal} of {len(expected)} texts of {len(tokens[0]) if tokens else 0} tokens equal; {'; '.join(notes)}; {figures}")
    return equal == len(expected) == len(logits) and largest <= TOLERANCE and missing == 0


def speed(model, file, command):
    _, err = finished([*command, "--raw", "--model", str(model), "--prompt-file", str(model / file)])
    print(rates(err))
    return True


def killed(model, command):
    prompt = (model / "prompts.txt").read_text().splitlines()[0]
    command = [*command, "--raw", "--model", str(model), "--restarts", "1", prompt]
    expected, _ = finished(command)
    run = Run(command)
    if not run.read_until(lambda: len(run.out.split()) >= WORDS_BEFORE_KILL):
        sys.exit(f"the text ended early: {run.err.decode(errors='replace')}")
    workers = run.children()
    if not workers:
        run.process.kill()
        sys.exit("the session has no worker process")
    os.kill(workers[-1], signal.SIGKILL)
    kill = time.monotonic()
    seen = run.read_until(lambda: b"generate: " in run.err)
    error, before = time.monotonic() - kill, len(run.out)
    seen = seen and run.read_until(lambda: len(run.out) > before)
    went_on = time.monotonic() - kill
    code = run.end()
    print(run.out.decode(errors="replace"), run.err.decode(errors="replace"), sep="\n")
    is_same = run.out.decode(errors="replace") == expected
    print(f"exit code {code}; error after {error:.2f} s, next token {f'{went_on:.2f} s' if seen else 'never'} after the kill; "
          f"{len(run.out.split())} tokens, {'the text is that' if is_same else 'the text DIFFERS from that'} of an undisturbed run")
    return seen and code == 0 and is_same


def refused(text, command):
    run = Run(command)
    code, err = run.end(), run.err.decode(errors="replace")
    print(err)
    print(f"exit code {code}: {errors(err)}")
    return code != 0 and text in err


def main():
    _, what, first, *rest = sys.argv
    model = Path(first)
    if what == "speed":
        return speed(model, rest[0], rest[1:])
    if what == "refused":
        return refused(first, rest)
    return dict(reference=reference, texts=texts, killed=killed)[what](model, rest)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(0 if main() else 1)
