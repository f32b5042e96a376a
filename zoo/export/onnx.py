"""A traced program -> an ONNX file, run by onnxruntime; and the same with weights of 8 bits."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from zoo.errors import ZooError
from zoo.export.programs import Program
from zoo.export.trace import any_length, first_line, quiet

OPSET = 18
SCOPES = "pkg.torch.onnx.name_scopes"  # where torch says which module a step came from
FRONT = "frontend/"  # begins the names of steps of a spectrogram


def need() -> None:
    """ZooError with the pip command where a package is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ZooError(f"--to onnx needs {error.name}: pip install 'zoo-attention[export]'") from error


def write(program: Program, traced: torch.export.ExportedProgram, file: Path, facts: dict[str, str]) -> None:
    """A file with inputs, outputs and axes called as in `program`, `facts` in its metadata. ZooError where ONNX lacks a part."""
    import onnx

    try:
        with any_length():
            found = torch.onnx.export(traced, dynamo=True, opset_version=OPSET, input_names=list(program.axes), verbose=False,
                                      output_names=list(program.outputs), custom_translation_table=_table())
            proto = found.model_proto
    except Exception as error:  # the exporter raises whatever it trips over
        raise ZooError(f"the ONNX exporter cannot translate this model: {first_line(error)}\ntake --to torch instead") from error
    _name_axes(proto, program)
    for node in proto.graph.node:
        if any("frontend" in entry.value for entry in node.metadata_props if entry.key == SCOPES):
            node.name = f"{FRONT}{node.name}"
        node.ClearField("metadata_props")  # where in Python each step came from: more than the weights of a small model
    onnx.helper.set_model_props(proto, facts)
    onnx.save(proto, str(file))


def _name_axes(proto, program: Program) -> None:
    """torch calls axes s12 and the like."""
    known = {}
    for value in proto.graph.input:
        for axis, name in program.axes[value.name].items():
            known[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_param = known[dim.dim_param]


def shrink(file: Path, out: Path) -> None:
    """The same program with the matrices of its products as 8-bit integers (a scale for each output channel), activations
    quantised as they come. Convolutions, tables and attention stay as they are, and spectrograms: 8 bits cannot hold powers that
    differ by a million (on spoken digits 100 % fell to 76 %).
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        whole = onnx.load(str(file))
        front = [node.name for node in whole.graph.node if node.name.startswith(FRONT)]
        quantize_dynamic(str(file), str(out), ["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8,
                         nodes_to_exclude=front)
    small = onnx.load(str(out))
    onnx.helper.set_model_props(small, {entry.key: entry.value for entry in whole.metadata_props})
    onnx.save(small, str(out))


def runner(file: Path, threads: int = 1) -> Callable:
    """inputs (tensors) -> outputs (tensors), on the processor. With one thread all work is done in the thread that calls."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        given = dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True))
        return [torch.from_numpy(found) for found in session.run(None, given)]

    return run


def _table() -> dict:
    """Steps that torch translates into what onnxruntime does not run: Where on bools, Mod by a length that is not known."""
    from onnxscript import ir
    from onnxscript import opset18 as op

    def masked_fill(x, mask, value):
        if x.dtype == ir.DataType.BOOL:
            return op.Or(x, mask) if value else op.And(x, op.Not(mask))
        return op.Where(mask, op.CastLike(op.Constant(value_float=float(value)), x), x)

    def remainder(x, other):
        return op.Mod(x, other)  # of integers, with the sign of `other`, as in Python

    aten = torch.ops.aten
    return {aten.masked_fill.Scalar: masked_fill, aten.remainder.Scalar: remainder}
