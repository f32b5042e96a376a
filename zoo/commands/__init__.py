"""The commands of `zoo`, one file a group; each adds itself to `app`."""
