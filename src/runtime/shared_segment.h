// Files of shared memory that leave nothing behind, however their processes end.
#pragma once

#include <string>

namespace spillway {

// Opens the segment, or makes it (empty), and holds a shared lock on it for as long as the
// descriptor is open: the lock dies with the process. Throws Error(internal) naming the path.
int open_segment(const std::string& path);

// Removes the files of `folder` whose names begin with `prefix` and that no living process holds
// open by open_segment: a start was cut short before they lost their name.
void remove_stale_segments(const std::string& folder, const std::string& prefix);

// The same for segments of others (Open MPI's), which hold no lock: removes those of this user that
// no process has open or mapped, as their makers do for as long as they live.
void remove_unused_segments(const std::string& folder, const std::string& prefix);

}  // namespace spillway
