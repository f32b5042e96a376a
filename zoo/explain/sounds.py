"""The spectrogram of a sound, and below it, on the same time axis, who looks at whom in time."""

import numpy as np
import torch

from zoo.explain.figure import (
    GREY,
    LINE,
    answer,
    colour_bar,
    head_name,
    label_axes,
    mark_row,
    new_figure,
    received_label,
    shares,
    title,
)
from zoo.explain.maps import Maps
from zoo.inference import inputs

DECIBEL = 10 / np.log(10)


def draw_sound(model, _item, maps: Maps, layer: str, head: slice, query: int | None = None):
    """Three panels over seconds: log-mel in Hz, attention received by each frame (or that of `query`), all pairs of frames."""
    shown = maps[layer]
    mel, step, rate = _log_mel(model, maps.prepared)
    heat, received = shown.weight(head), shares(shown.received(head, query))
    (frames,), look = shown.askers
    seconds, spanned, looking = len(mel) * step, heat.shape[1] * shown.step, frames * look
    figure = new_figure(9, 9.2)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[1.3, 0.6, 2.6])
    drawn = top.imshow(mel.T, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, mel.shape[1]))
    _hertz(top, model.frontend, rate)
    colour_bar(drawn, top, "power (dB)")
    middle.stairs(received, np.arange(len(received) + 1) * shown.step, baseline=None, color=LINE, linewidth=1.4)
    middle.axhline(1, color=GREY, linewidth=0.7, linestyle=":")
    middle.set_ylim(0, 1.08 * received.max())
    label_axes(middle, None, received_label(query))
    drawn = bottom.imshow(heat, aspect="auto", cmap="cividis", extent=(0, spanned, looking, 0), interpolation="nearest")
    label_axes(bottom, "time looked at (s)", "time that looks (s)")
    colour_bar(drawn, bottom, "weight (a row sums to 1)")
    bottom.set(xlim=(0, seconds), ylim=(seconds, 0))
    if query is not None:
        mark_row(bottom, query * look, (query + 1) * look)
    asked = "" if query is None else f", asked: the frame at {query * look:.4g} s"
    where = f"{head_name(layer, shown, head)}, {1000 * shown.step:g} ms a token{asked}"
    title(figure, model, layer, where, answer(model, maps))
    return figure


def _log_mel(model, wave) -> tuple[np.ndarray, float, int]:
    """The model's own log-mel spectrogram (frames mels) in dB, seconds a frame, rate in Hz."""
    frontend = model.frontend
    with torch.inference_mode():
        x, lengths = inputs(model, [wave])
        if hasattr(frontend, "log_mel"):
            mel = frontend.log_mel(x, lengths)[0][0] * DECIBEL
        else:  # HTS-AT: pieces of 10 s, each with one frame that the next repeats
            mel = frontend(x, lengths)[0][:, :-1].flatten(0, 1)
    return mel.float().cpu().numpy(), frontend.hop / frontend.rate, frontend.rate


def _hertz(axes, frontend, rate: int) -> None:
    """The axis of mel bands in Hz."""
    bank = getattr(frontend, "bank", None)
    bank = (frontend.filters if bank is None else bank).float().cpu().numpy()  # mels bins
    centre = bank @ np.linspace(0, rate / 2, bank.shape[1]) / bank.sum(1)
    marks = [hertz for hertz in (250, 500, 1000, 2000, 4000, 8000, 16000) if centre[0] <= hertz <= centre[-1]]
    axes.set_yticks(np.interp(marks, centre, np.arange(len(centre)) + 0.5), [f"{hertz:,}" for hertz in marks])
    label_axes(axes, None, "frequency (Hz)")
