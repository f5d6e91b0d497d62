"""RAD on a stream that arrives from outside, batch by batch, of any length.

`OnlineRad` holds the state, checks what comes in, pads it to one static shape (so that
nothing is compiled twice) and turns the answers into NumPy. The functions that it
calls are those of `rad_jax.rad`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rad_jax import checks
from rad_jax.memory import MemoryFullError
from rad_jax.rad import Rad
from rad_jax.state import State
from rad_jax.types import UNLABELLED, Batch, RowStatus


class Verdict(NamedTuple):
    """What was made of the rows of a batch, in the order in which they came.

    Attributes:
      row_id: ``[n]`` int32, for `OnlineRad.answer`.
      kept: ``[n]`` bool, trained on with the given label.
      queried: ``[n]`` bool, wants an expert's label.
      label_probs: ``[n, K]`` float32, of the label model before it saw the batch.
      class_probs: ``[n, K]`` float32, of the classifier likewise.
    """

    row_id: np.ndarray
    kept: np.ndarray
    queried: np.ndarray
    label_probs: np.ndarray
    class_probs: np.ndarray


class Suspects(NamedTuple):
    """Rows whose given label is probably wrong, or was corrected.

    Corrected rows come first, then by falling `doubt`.

    Attributes:
      row_id: ``[n]`` int32.
      given: ``[n]`` int32, label as it arrived.
      suggested: ``[n]`` int32, the expert's label, or else what is predicted now;
        never the given one.
      doubt: ``[n]`` float32, 1 - probability of the given label; 1 where corrected.
        Networks are sure of themselves unless ``rad(calibrate=True)``.
      verified: ``[n]`` bool, the suggestion is an expert's.
    """

    row_id: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    doubt: np.ndarray
    verified: np.ndarray


class OnlineRad:
    """An on-line learner with a memory, for use from plain Python.

    One thread at a time: calls change the state.

    Example:
      >>> online = OnlineRad(algo, max_batch_size=100)
      >>> online.start(clean_features, clean_labels)
      >>> verdict = online.step(features, labels)
      >>> online.answer(verdict.row_id[verdict.queried], labels_from_an_expert)
      >>> online.learn()
      >>> online.predict(new_features)

    Attributes:
      state: the present `State`, a plain pytree, to be looked at.
    """

    def __init__(
        self,
        algo: Rad,
        *,
        max_batch_size: int,
        seed: int = 0,
        new_classes: str = "refuse",
    ) -> None:
        """Wraps an algorithm; nothing is compiled before it is used.

        Args:
          algo: from `rad_jax.rad`.
          max_batch_size: most rows in a call of `step` or `judge`; shorter batches
            are padded to it.
          seed: of initialisation and of the order of minibatches.
          new_classes: what becomes of a batch with labels of a class of which neither
            the clean batch nor an `answer` has had a row: "refuse" it, or "admit"
            it, in which case only a scheme that asks an expert can come to know the
            class (`active`, or `active_limited` with `new_class_rows`).

        Raises:
          ValueError: for a size below 1, or an unknown value.
        """
        if new_classes not in checks.NEW_CLASSES:
            raise ValueError(
                f"new_classes must be one of {checks.NEW_CLASSES}, got {new_classes!r}"
            )
        if max_batch_size < 1 or max_batch_size != int(max_batch_size):
            raise ValueError(
                f"max_batch_size must be a whole number >= 1, got {max_batch_size}"
            )
        self._algo = algo
        self._size = int(max_batch_size)
        self._key = jax.random.key(seed)
        traceable = all(learner.traceable for learner in algo.engine.learners)
        jit = jax.jit if traceable else lambda function: function
        self._init = jit(algo.init)
        self._judge = jit(algo.judge)
        self._answer = jit(algo.answer)
        self._learn = jit(algo.learn)
        self._predict_proba = jit(algo.predict_proba)
        self._state: State | None = None
        self._held_out_ids = np.zeros(0, np.int32)
        self._next_id = 0
        self._refuse = new_classes == "refuse"
        self._known_classes = np.zeros(0, np.int32)
        self._stored = 0
        self._dtype: np.dtype | None = None

    @property
    def state(self) -> State:
        """The present state.

        Raises:
          RuntimeError: before `start`.
        """
        if self._state is None:
            raise RuntimeError("call start(features, labels) with clean rows first")
        return self._state

    def start(
        self, features: ArrayLike, labels: ArrayLike, row_ids: ArrayLike | None = None
    ) -> None:
        """Learns the clean batch.

        Args:
          features: ``[n, *S]`` finite numbers.
          labels: ``[n]`` whole numbers in 0..K-1, trusted.
          row_ids: ``[n]`` int, by default 0, 1, ….

        Raises:
          ValueError: for input that is not as above.
          MemoryFullError: if the memory is smaller than the batch.
        """
        x = checks.features("features", features)
        y = checks.labels(
            "labels", labels, len(x), self._algo.engine.num_classes, missing=False
        )
        ids = self._take_ids(row_ids, len(x), fresh=True)
        held_out = self._algo.engine.num_held_out(len(x))
        self._check_room(len(x) - held_out, stored=0)
        batch = Batch(
            jnp.asarray(x), jnp.asarray(y), jnp.ones(len(x), bool), jnp.asarray(ids)
        )
        self._state = self._init(self._key, batch)
        self._dtype = np.asarray(features).dtype
        self._stored = int(self._state.shared.memory.count)
        self._held_out_ids = np.setdiff1d(ids, self._state.shared.memory.row_id)
        self._next_id = int(ids.max()) + 1
        self._known_classes = np.unique(y)

    def judge(
        self, features: ArrayLike, labels: ArrayLike, row_ids: ArrayLike | None = None
    ) -> Verdict:
        """Stores a batch and decides what to train on; trains nothing yet.

        Args:
          features: ``[n, *S]`` finite numbers, n at most `max_batch_size`, of the
            shape and dtype of the clean batch.
          labels: ``[n]`` whole numbers in 0..K-1, -1 for rows without label.
          row_ids: ``[n]`` int, none of a row that is remembered (or validates); by
            default the ones after the last, and free ones once 2^31 is reached.

        Returns:
          What was made of the rows.

        Raises:
          ValueError: for input that is not as above.
          MemoryFullError: if there is no room; nothing has changed then.
        """
        state = self.state
        row_shape = state.shared.memory.features.shape[1:]
        x = checks.features(
            "features", features, row_shape=row_shape, dtype=self._dtype
        )
        n = len(x)
        if n > self._size:
            raise ValueError(
                f"features has {n} rows, more than max_batch_size={self._size}; cut "
                "the batch or raise max_batch_size"
            )
        y = checks.labels(
            "labels", labels, n, self._algo.engine.num_classes, missing=True
        )
        if self._refuse:
            checks.no_new_classes(
                "labels",
                y,
                self._known_classes,
                "add clean rows of it, give -1 for its rows and `answer` for some of "
                'them, or say new_classes="admit" and ask an expert',
            )
        ids = self._take_ids(row_ids, n)
        self._check_room(n, self._stored)
        batch = Batch(
            self._pad(x, 0),
            self._pad(y, UNLABELLED),
            self._pad(np.ones(n, bool), False),
            self._pad(ids, -1),
        )
        self._state, info = self._judge(state, batch)
        self._stored += n
        self._next_id = max(self._next_id, int(ids.max()) + 1)
        return Verdict(
            row_id=ids,
            kept=np.asarray(info.keep)[:n],
            queried=np.asarray(info.query)[:n],
            label_probs=np.asarray(info.label_probs)[:n],
            class_probs=np.asarray(info.class_probs)[:n],
        )

    def answer(self, row_ids: ArrayLike, labels: ArrayLike) -> None:
        """Takes an expert's labels for stored rows; `learn` then trains on them.

        Args:
          row_ids: ``[n]`` int, of stored rows, asked about or not.
          labels: ``[n]`` whole numbers in 0..K-1.

        Raises:
          ValueError: for input that is not as above, or a row that is not stored.
        """
        state = self.state
        n = np.asarray(row_ids).size
        ids = checks.row_ids("row_ids", row_ids, n) if n else np.zeros(0, np.int32)
        y = checks.labels(
            "labels", labels, n, self._algo.engine.num_classes, missing=False
        )
        _, found = self._find(ids)
        if not found.all():
            raise ValueError(
                f"row_ids {ids[~found].tolist()} are not stored: unknown, forgotten, "
                "or clean rows held out for validation"
            )
        for lo in range(0, n, self._size):
            part = slice(lo, lo + self._size)
            state, _ = self._answer(
                state, self._pad(ids[part], -1), self._pad(y[part], UNLABELLED)
            )
        self._state = state
        self._known_classes = np.union1d(self._known_classes, y)

    def learn(self) -> None:
        """Trains on everything that is kept or verified."""
        self._state = self._learn(self.state)

    def step(
        self, features: ArrayLike, labels: ArrayLike, row_ids: ArrayLike | None = None
    ) -> Verdict:
        """`judge`, then `learn`; rows that want an expert wait for `answer`."""
        verdict = self.judge(features, labels, row_ids)
        self.learn()
        return verdict

    def predict_proba(self, features: ArrayLike) -> np.ndarray:
        """Class probabilities of the model that decides each row.

        Args:
          features: ``[n, *S]``, any n of at least 1.

        Returns:
          ``[n, K]`` float32.

        Raises:
          ValueError: for input that is not as above.
        """
        row_shape = self.state.shared.memory.features.shape[1:]
        x = checks.features(
            "features", features, row_shape=row_shape, dtype=self._dtype
        )
        return self._probabilities(x)

    def predict(self, features: ArrayLike) -> np.ndarray:
        """Predicted classes, ``[n]`` int32; see `predict_proba`."""
        return np.argmax(self.predict_proba(features), axis=-1).astype(np.int32)

    def suspects(self) -> Suspects:
        """Stored rows whose given label is probably wrong.

        Those are the rows that an expert gave another label, and the labelled rows
        that are not trained on and of which another class is predicted now.
        """
        memory, per_seed = self.state.shared.memory, self.state.per_seed
        given, label = np.asarray(per_seed.given), np.asarray(per_seed.label)
        status = np.asarray(per_seed.status)
        corrected = (status == RowStatus.VERIFIED) & (given != label)
        rejected = (status == RowStatus.DROPPED) | (status == RowStatus.PENDING)
        labelled = np.asarray(memory.valid) & (given != UNLABELLED)
        slots = np.flatnonzero(labelled & (corrected | rejected))
        given, verified = given[slots], corrected[slots]
        probs = np.zeros((0, self._algo.engine.num_classes), np.float32)
        if slots.size:
            probs = self._probabilities(np.asarray(memory.features)[slots])
        suggested = np.where(verified, label[slots], np.argmax(probs, axis=-1))
        doubt = np.where(verified, 1.0, 1.0 - probs[np.arange(slots.size), given])
        order = np.lexsort((-doubt, ~verified))
        order = order[(suggested != given)[order]]
        return Suspects(
            row_id=np.asarray(memory.row_id)[slots][order],
            given=given[order].astype(np.int32),
            suggested=suggested[order].astype(np.int32),
            doubt=doubt[order].astype(np.float32),
            verified=verified[order],
        )

    def _probabilities(self, x: np.ndarray) -> np.ndarray:
        parts = []
        for lo in range(0, len(x), self._size):
            part = x[lo : lo + self._size]
            probs = self._predict_proba(self.state, self._pad(part, 0))
            parts.append(np.asarray(probs)[: len(part)])
        return np.concatenate(parts)

    def _pad(self, rows: np.ndarray, fill) -> jax.Array:
        short = [(0, self._size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
        return jnp.asarray(np.pad(rows, short, constant_values=fill))

    def _find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stored = np.asarray(self.state.shared.memory.row_id)
        order = np.argsort(stored)
        position = np.minimum(np.searchsorted(stored[order], ids), len(stored) - 1)
        slot = order[position]
        return slot, stored[slot] == ids

    def _used_ids(self) -> np.ndarray:
        """Ids of rows that are remembered or validate; forgotten ones are free."""
        return np.append(self.state.shared.memory.row_id, self._held_out_ids)

    def _take_ids(self, row_ids, n: int, *, fresh: bool = False) -> np.ndarray:
        if row_ids is None:
            first = 0 if fresh else self._next_id
            ids = np.arange(first, first + n)
            if first + n > 2**31:
                used = self._used_ids()
                ids = np.setdiff1d(np.arange(n + used.size), used)[:n]
            return ids.astype(np.int32)
        ids = checks.row_ids("row_ids", row_ids, n)
        again = ids[np.isin(ids, [] if fresh else self._used_ids())]
        if again.size:
            raise ValueError(f"row_ids {again[:5].tolist()} have been used before")
        return ids

    def _check_room(self, n: int, stored: int) -> None:
        capacity = self._algo.engine.memory_capacity
        if self._algo.engine.sliding:
            stored = 0  # the oldest rows make room
        if stored + n > capacity:
            raise MemoryFullError(
                f"memory_capacity={capacity} rows: {stored} are stored and {n} more "
                "came; raise memory_capacity"
            )
