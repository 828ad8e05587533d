"""Oracle: supervised training on the target's own labels. The upper reference; adapts nothing."""

from kd3a.methods.base import Local


class Oracle(Local):
    """Cross-entropy on the labelled target. The only method that may read target labels."""

    name = "oracle"
    summary = "supervised on the target's own labels: the upper reference"
    uses_target_labels = True

    def build(self) -> None:
        target = self.task.target
        self.party = self.trainer.party(target.name, self.trainer.net(self.task), target.train)
        self.parties = [self.party]
