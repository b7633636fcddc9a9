"""Let a CUDA-linked torchvision wheel import on a CPU-only torch.

The wheel's extension needs ``libtorch_cuda``. torchvision tolerates its absence, but its Python side then registers
fake kernels for undeclared operators, and the import fails. Declaring only the schemas first, never the kernels, lets
the pure Python part (``transforms.v2``) work. Image and video processors need nothing more. Schemas: torchvision 0.28
``csrc/ops``.
"""

import importlib.util

import torch

_BOXES = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_GRAD = "Tensor grad, Tensor rois"
_SCALE = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_DEFORM = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)

SCHEMAS = (
    f"nms{_NMS}",
    f"qnms{_NMS}",
    f"roi_align({_BOXES}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align({_BOXES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_GRAD}, {_SCALE}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOXES}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_GRAD}, Tensor argmax, {_SCALE}, {_SHAPE}) -> Tensor",
    f"ps_roi_align({_BOXES}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_GRAD}, Tensor channel_mapping, {_SCALE}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool({_BOXES}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_GRAD}, Tensor channel_mapping, {_SCALE}, {_SHAPE}) -> Tensor",
    f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_DEFORM}) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    f"{_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

# A torch Library lives as long as its object: the declarations must outlive this module's caller.
_library: torch.library.Library | None = None


def is_needed() -> bool:
    """Return whether installed torchvision lacks its operators on CPU torch."""
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return False
    return not hasattr(torch.ops.torchvision, "nms")


def install_operators() -> bool:
    """Declare the operators when ``is_needed``; call before the first import of torchvision.

    Returns whether declarations were made. Calling again changes nothing.
    """
    global _library
    if _library is not None or not is_needed():
        return False
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        _library.define(schema)
    return True
