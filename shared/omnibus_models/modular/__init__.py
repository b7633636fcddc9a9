"""Components of any pipeline that diffusers has in blocks, without code for its class.

The blocks before, in and after the denoising loop become the text encoder, the denoiser and the decoder. Each has only
the models that its blocks name. A trial with a small copy of the class proves that they give the bits of the whole.
"""

from omnibus_models import torchvision_cpu

# Both libraries import torchvision with their models if it is installed.
torchvision_cpu.install_operators()
