"""`Trainer`: the network, its head for phones, optimisers, running average, and one update of them all."""

from __future__ import annotations

import math
import random

import torch
from deepen import Weights
from loss import rnnt_loss
from phones import PHONES
from schedule import Schedule
from stem import CentredConvolution
from torch import Tensor, nn

from data import Corpora, collate, in_a_row
from nemostream.config import ModelConfig
from nemostream.model.network import Network
from processes import Processes

PHONES_PER_FRAME = 4  # the auxiliary head's resolution: a phone can be much shorter than a frame
CONTEXT_SHARES = {3: 0.3, 13: 0.3}  # of batches, by right context; the others share the rest
FIRST = "encoder.subsampling.conv_in."  # the convolution that is trained in centred coordinates
PROMPTS = {"en-US": 0, "en": 0, "auto": 101}


def tiny_config(vocab_size: int) -> ModelConfig:
    """Dimensions for random weights: the embedded model's, but for three layers that it got later."""
    return ModelConfig(
        hidden_size=160,
        num_layers=6,
        num_heads=4,
        intermediate_size=640,
        subsampling_channels=32,
        conv_kernel_size=9,
        predictor_hidden_size=160,
        predictor_layers=2,
        joint_hidden_size=160,
        vocab_size=vocab_size,
        att_context_sizes=((56, 3), (56, 0), (56, 1), (56, 6), (56, 13)),
        num_prompts=128,
        prompt_intermediate_size=320,
        prompts=PROMPTS,
        default_language="auto",
    )


def aligned_loss(log_phones: Tensor, aligned: Tensor) -> Tensor:
    """Cross entropy of the phones of mel frames [B, T], for log probabilities [B, slots, phones + 1].

    Slot s of encoder frame k covers the mel frames 8 k - 8 + 2 s and the next: the frame sees no further.
    Silence counts as the blank.
    """
    slots = nn.functional.pad(aligned, (8, 8), value=-1)[:, :: 8 // PHONES_PER_FRAME][
        :, : log_phones.shape[1]
    ]
    slots = nn.functional.pad(slots, (0, log_phones.shape[1] - slots.shape[1]), value=-1)
    target = torch.where(slots < 0, len(PHONES), slots)
    return nn.functional.nll_loss(log_phones.flatten(0, 1), target.flatten())


class Trainer:
    """Network, auxiliary head, optimisers and running average."""

    def __init__(
        self,
        config: ModelConfig,
        schedule: Schedule,
        seed: int,
        dropout: float = 0.0,
        freeze: str | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.config, self.schedule = config, schedule
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = Network(config, dropout=dropout).to(self.device)
        self.network.encoder.subsampling.conv_in = CentredConvolution(
            self.network.encoder.subsampling.conv_in
        )
        # on a CPU the backward pass of depthwise convolutions is six times slower in bf16 than in fp32
        stem = self.network.encoder.subsampling.to(memory_format=torch.channels_last)
        stem.forward = torch.autocast(self.device.type, enabled=False)(stem.forward)
        self.ctc_head = nn.Linear(config.hidden_size, PHONES_PER_FRAME * (len(PHONES) + 1)).to(self.device)
        if freeze is not None:
            encoder = self.network.encoder
            {"stem": encoder.subsampling, "encoder": encoder}[freeze].requires_grad_(False)
        self.optimizers = self._optimizers()
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.processes = Processes()
        self.seed = seed
        self.told_to_stop = False  # this process
        self.stopped = False  # any of them was, before the last step
        self.hours = 0.0
        self.steps = 0

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Muon for the matrices of the encoder's layers, AdamW for all else, with one learning rate."""
        matrices, decay, plain = [], [], []
        for name, parameter in self.network.named_parameters():
            if name.startswith("encoder.layers.") and name.endswith("weight") and parameter.ndim == 2:
                matrices.append(parameter)
            else:
                (decay if parameter.ndim >= 2 else plain).append(parameter)
        decay.append(self.ctc_head.weight)
        plain.append(self.ctc_head.bias)
        return (
            torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(
                [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
                betas=(0.9, 0.98),
                fused=True,
            ),
        )

    def right_context(self) -> tuple[int, int]:
        """Attention context of a batch, drawn from the trained ones."""
        sizes = self.config.att_context_sizes
        others = [size for size in sizes if size[1] not in CONTEXT_SHARES]
        rest = 1 - sum(CONTEXT_SHARES.get(right, 0.0) for _, right in sizes)
        shares = [CONTEXT_SHARES.get(right, rest / max(1, len(others))) for _, right in sizes]
        return self.random.choices(sizes, shares)[0]

    def losses(self, corpora: Corpora) -> tuple[Tensor | None, Tensor, float]:
        """RNN-T loss per token (None at first), phone loss (CTC or aligned), and the hours of audio."""
        longest = int(self.schedule.longest_seconds(self.hours) * 100)
        aligned = self.random.random() < self.schedule.aligned(self.hours)
        only = ("flite",) if aligned else None
        clips = corpora.draw(self.random, only, int(self.schedule.batch(self.hours) * 100), longest)
        rows = [[clip] for clip in clips]
        if self.random.random() < self.schedule.joined(self.hours):
            rows = in_a_row(clips, self.random)
        batch = collate(corpora, rows, self.schedule.augmentation(self.hours), self.random)
        att_context_size = self.right_context()
        prompt = torch.tensor([self.random.choice((PROMPTS["en-US"], PROMPTS["auto"])) for _ in rows])
        device = self.device
        mel, mel_lengths = batch.mel.to(device), batch.mel_lengths.to(device)
        tokens, token_lengths = batch.tokens.to(device), batch.token_lengths.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            encoded, frames = self.network.encoder.encode_utterance(mel, mel_lengths, att_context_size)
            ctc_logits = (
                self.ctc_head(encoded).unflatten(2, (PHONES_PER_FRAME, len(PHONES) + 1)).flatten(1, 2)
            )
        rnnt = None
        if self.hours >= self.schedule.phone_only_hours:
            # in fp32: rounded to bf16, these small parts stay on their plateau for hours
            projected = self.network.project(encoded.float(), prompt.to(device))
            start = torch.full_like(tokens[:, :1], self.config.blank_id)
            predicted, _ = self.network.decoder(
                torch.cat([start, tokens], 1), self.network.initial_predictor_state(len(rows))
            )
            with torch.autocast(device.type, torch.bfloat16):
                rnnt = rnnt_loss(
                    self.network.joint,
                    projected,
                    predicted,
                    tokens,
                    frames,
                    token_lengths,
                    self.config.blank_id,
                ).sum()
        log_phones = torch.log_softmax(ctc_logits.float(), 2)
        if aligned:
            phone = aligned_loss(log_phones, batch.aligned.to(device))
        else:
            ctc = nn.functional.ctc_loss(
                log_phones.transpose(0, 1),
                batch.phones.to(device),
                frames * PHONES_PER_FRAME,
                batch.phone_lengths.to(device),
                blank=len(PHONES),
                reduction="none",
                zero_infinity=True,
            )
            known = batch.phone_lengths > 0  # texts without phones teach the RNN-T loss only
            phone = ctc[known].sum() / batch.phone_lengths.sum().clamp(min=1)
        return None if rnnt is None else rnnt / token_lengths.sum(), phone, float(mel_lengths.sum()) / 360000

    def step(self, corpora: Corpora) -> dict[str, float]:
        """One update; returns what the log records."""
        # every step has its own random numbers in every process, so that there is no state of them to keep
        self.random = random.Random(f"{self.seed} {self.processes.rank} {self.steps}")
        torch.manual_seed(self.random.getrandbits(48))
        rnnt, phone, hours = self.losses(corpora)
        loss = phone if rnnt is None else rnnt + self.schedule.phone_weight * phone
        rate = self.schedule.rate(self.hours)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group in groups:
            group["lr"] = rate
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in groups for p in group["params"] if p.grad is not None]
        hours, told = self.processes.share([p.grad for p in parameters], [hours, float(self.told_to_stop)])
        norm = nn.utils.clip_grad_norm_(parameters, 5.0)
        if torch.isfinite(norm):
            for optimizer in self.optimizers:
                optimizer.step()
        with torch.no_grad():  # the blank row is the predictor's start and must stay zero
            self.network.decoder.embedding.weight[self.config.blank_id] = 0.0
            keep = min(0.998, (1 + self.steps) / (10 + self.steps))
            torch._foreach_lerp_(
                list(self.average.values()), list(self.network.state_dict().values()), 1 - keep
            )
        self.hours += hours
        self.steps += 1
        self.stopped = told > 0
        return {
            "phone": phone.item(),
            "rnnt": math.nan if rnnt is None else rnnt.item(),
            "norm": norm.item(),
            "rate": rate,
        }

    def start_from(self, weights: Weights, ctc_head: dict[str, Tensor] | None = None) -> None:
        """Begin with weights of the same dimensions instead of random ones."""
        if ctc_head is not None:
            self.ctc_head.load_state_dict(ctc_head)
        centred = self.network.encoder.subsampling.conv_in
        tensors = {
            name: torch.from_numpy(value).to(self.device, torch.float32) for name, value in weights.items()
        }
        tensors[FIRST + "weight"], tensors[FIRST + "bias"] = centred.centred(
            tensors[FIRST + "weight"], tensors[FIRST + "bias"]
        )
        self.network.load_state_dict(tensors)
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def averaged_weights(self) -> dict[str, Tensor]:
        """The running average by checkpoint key; the inverse of `start_from`."""
        weights = dict(self.average)
        weights[FIRST + "weight"], weights[FIRST + "bias"] = self.network.encoder.subsampling.conv_in.plain(
            weights[FIRST + "weight"], weights[FIRST + "bias"]
        )
        return weights

    def state_dict(self) -> dict[str, object]:
        """All that is needed to go on as if nothing had happened."""
        return {
            "network": self.network.state_dict(),
            "ctc_head": self.ctc_head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "average": self.average,
            "hours": self.hours,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from `state_dict`."""
        self.network.load_state_dict(state["network"])  # type: ignore[arg-type]
        self.ctc_head.load_state_dict(state["ctc_head"])  # type: ignore[arg-type]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):  # type: ignore[call-overload]
            optimizer.load_state_dict(saved)
        average: dict[str, Tensor] = state["average"]  # type: ignore[assignment]
        self.average = {name: value.to(self.device) for name, value in average.items()}
        self.hours, self.steps = state["hours"], state["steps"]  # type: ignore[assignment]
