//! Short programs, crashed at every event of the disk.
