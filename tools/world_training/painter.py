"""Train to draw a description: text encoder and transformer learn together.

They learn how noise becomes the latents of an image.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus_models.families.qwen_image import SKIPPED_TOKENS, TEMPLATE
from omnibus_models.world import dialogues, scenes
from tools.world_training import loop, pools, vae
from tools.world_training import painter_model as painter

STEPS, BATCH, RATE = 4000, 48, 1.5e-3
POLISHING, POLISHING_RATE = 1200, 1e-3
_PICTURES = 8000
_UNGUIDED = 0.1  # images without a description


class Reader:
    """Prompts to hidden states, as the family's text encoder does it."""

    def __init__(self, components: dict[str, Any]) -> None:
        self._encoder, self._tokenizer = components["text_encoder"], components["tokenizer"]

    def read(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Hidden states [B, T, H] and their mask, bool [B, T]."""
        ids = [torch.tensor(self._tokenizer(TEMPLATE.format(prompt))["input_ids"]) for prompt in prompts]
        token_ids = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        hidden = self._encoder.get_decoder()(
            inputs_embeds=self._encoder.get_input_embeddings()(token_ids),
            position_ids=torch.arange(token_ids.shape[1]).expand(3, *token_ids.shape),
            use_cache=False,
        ).last_hidden_state
        lengths = torch.tensor([len(one) for one in ids])
        return hidden[:, SKIPPED_TOKENS:], torch.arange(SKIPPED_TOKENS, token_ids.shape[1]) < lengths[:, None]


def learn(components: dict[str, Any], seed: int) -> None:
    """Train the text encoder and the transformer of ``components``: begin and polish.

    The VAE must be trained already.
    """
    begin(components, seed)
    polish(components, seed + 1)


def begin(components: dict[str, Any], seed: int, steps: int = STEPS) -> None:
    """First stage: more noise than usual, which determines objects and places."""
    words, transformer = components["text_encoder"].model.language_model, components["transformer"]
    loop.spread(words, seed)
    loop.spread(transformer, seed)
    loss = _lesson(components, seed, lambda generator: torch.rand(BATCH, generator=generator).sqrt())
    loop.train("painter", [*transformer.parameters(), *words.parameters()], loss, steps, RATE)


def polish(components: dict[str, Any], seed: int, steps: int = POLISHING) -> None:
    """Learn the rest, by smaller steps of Muon: with noise of all sizes, as edges need it."""
    modules = nn.ModuleList([components["transformer"], components["text_encoder"].model.language_model])
    loss = _lesson(components, seed, lambda generator: torch.rand(BATCH, generator=generator))
    loop.train("polish", modules.parameters(), loss, steps, POLISHING_RATE, loop.layers(modules))


def _lesson(
    components: dict[str, Any], seed: int, noisy: Callable[[torch.Generator], Tensor]
) -> Callable[[int], Tensor]:
    """Return the flow-matching loss of a step.

    ``seed`` chooses images and ``noisy`` shares of noise.
    """
    from diffusers import QwenImagePipeline

    transformer, reader = components["transformer"], Reader(components)
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    examples = _latents(components["vae"], seed)

    def loss(step: int) -> Tensor:
        indices = torch.randint(len(examples[1]), (BATCH,), generator=generator)
        wishes = [dialogues.sample_image_prompt(random, examples[1][index]) for index in indices.tolist()]
        prompts = ["" if random.random() < _UNGUIDED else wish for wish in wishes]
        embeds, mask = reader.read(prompts)
        clear = QwenImagePipeline._pack_latents(examples[0][indices], BATCH, *examples[0].shape[1:])
        noise = torch.randn(clear.shape, generator=generator)
        sigma = noisy(generator)
        side = painter.LATENT_SIDE // 2
        [prediction] = transformer(
            hidden_states=torch.lerp(clear, noise, sigma[:, None, None]),
            timestep=sigma,
            encoder_hidden_states=embeds,
            encoder_hidden_states_mask=mask,
            img_shapes=[[(1, side, side)]] * BATCH,
            return_dict=False,
        )
        return nn.functional.mse_loss(prediction, noise - clear)

    return loss


def _latents(autoencoder: Any, seed: int) -> tuple[Tensor, Sequence[scenes.ShapeScene]]:
    """Latents of many images [n, channels, 8, 8], of deviation 1, and their scenes."""
    pool = pools.pictures(scenes.training_scenes(), _PICTURES, seed)
    with vae.flat(), torch.no_grad():
        latents = torch.cat([vae.encoded(autoencoder, part) for part in pool.pixels.split(500)])
    mean, deviation = (torch.tensor(getattr(autoencoder.config, name)) for name in ("latents_mean", "latents_std"))
    return (latents - mean[:, None, None]) / deviation[:, None, None], pool.scenes
