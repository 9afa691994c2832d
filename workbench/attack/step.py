"""The attack as a state and a step: pure functions that a session, a script or a test can drive.

`init` makes the first `AttackState`; `step` makes the next one and a `StepInfo`; `run` makes many with no host round
trip. One compilation serves every number of steps, every weight of a loss term and every client of the same shape.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from workbench.attack.objective import Objective, Problem, Steering, Terms, loss_and_terms

__all__ = [
    "HISTORY_LENGTH",
    "AttackState",
    "History",
    "StepInfo",
    "adam",
    "init",
    "run",
    "step",
]

HISTORY_LENGTH = 256
"""The most steps that one call of `run` makes."""


def adam() -> optax.GradientTransformation:
    """The paper's optimiser, as a direction to go down: the step size and its decay are the attack's."""
    return _ADAM


_ADAM = optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


class AttackState(NamedTuple):
    """What is carried from step to step.

    Attributes:
        images: [A, V, N, H, W, C] normalised, the variables.
        optimizer: its state.
        step: how many steps were made, in all phases.
        phase: the index of the phase that the images belong to.
        consensus: [A, V, N, H, W, C] what the consensus term pulls towards; the images themselves while it is off.
        has_consensus: 1.0 once there is one, 0.0 before.
        started: [A, V, N] the step at which every image started from noise: its span weight rises from there.
    """

    images: Array
    optimizer: Any
    step: Array
    phase: Array
    consensus: Array
    has_consensus: Array
    started: Array


class StepInfo(NamedTuple):
    """What is observed of a step: the loss and its terms before it, and the size of the gradient.

    Numbers on the device, or NumPy arrays over several steps.
    """

    loss: Any
    terms: Terms
    gradient_norm: Any
    step_size: Any


class History(NamedTuple):
    """The `StepInfo` of up to `HISTORY_LENGTH` steps, and how many were made before something was not finite."""

    infos: StepInfo
    num_steps: Array


_Carry = tuple[AttackState, StepInfo, Array, Array]


def init(images: Array, optimizer: optax.GradientTransformation = _ADAM, step: int = 0, phase: int = 0) -> AttackState:
    """The state before the first step of a phase, from the images to start with."""
    return AttackState(
        images=images,
        optimizer=optimizer.init(images),
        step=jnp.int32(step),
        phase=jnp.int32(phase),
        consensus=jnp.zeros_like(images),
        has_consensus=jnp.float32(0),
        started=jnp.full(images.shape[:3], step, jnp.int32),
    )


@partial(jax.jit, static_argnums=(0, 1), inline=True)
def step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    problem: Problem,
    state: AttackState,
    steering: Steering,
) -> tuple[AttackState, StepInfo]:
    """One optimisation step."""
    steering = steering._replace(consensus=steering.consensus * state.has_consensus)
    (loss, terms), gradient = jax.value_and_grad(loss_and_terms, argnums=4, has_aux=True)(
        objective, problem, steering, state.step, state.images, state.consensus, state.started
    )
    step_size = steering.step_size * problem.step_decay ** (state.step - problem.first_step).astype(jnp.float32)
    # Optax mixes number types (0.9 ** step), which a session with strict promotion would refuse.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.images)
    info = StepInfo(loss, terms, jnp.sqrt(jnp.vdot(gradient, gradient)), step_size)
    following = state._replace(
        images=state.images + step_size * updates, optimizer=optimizer_state, step=state.step + 1
    )
    return following, info


@partial(jax.jit, static_argnums=(0, 1))
def run(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    problem: Problem,
    state: AttackState,
    steering: Steering,
    num_steps: Array,
) -> tuple[AttackState, History]:
    """Up to ``num_steps`` steps (at most `HISTORY_LENGTH`), ending before one with a number that is not finite.

    The state is then the last good one.
    """
    make = partial(step, objective, optimizer, problem, steering=steering)
    _, shape = jax.eval_shape(make, state)
    empty = jax.tree.map(lambda leaf: jnp.zeros((HISTORY_LENGTH,), leaf.dtype), shape)

    def unfinished(carry: _Carry) -> Array:
        _, _, made, is_finite = carry
        return (made < num_steps) & is_finite

    def body(carry: _Carry) -> _Carry:
        state, infos, made, _ = carry
        following, info = make(state)
        is_finite = jnp.isfinite(info.loss) & jnp.isfinite(info.gradient_norm) & jnp.isfinite(following.images).all()
        state = jax.tree.map(partial(jnp.where, is_finite), following, state)
        infos = jax.tree.map(lambda all_, one: all_.at[made].set(one), infos, info)
        return state, infos, made + is_finite.astype(made.dtype), is_finite

    state, infos, made, _ = lax.while_loop(unfinished, body, (state, empty, jnp.int32(0), jnp.bool_(True)))
    return state, History(infos, made)
