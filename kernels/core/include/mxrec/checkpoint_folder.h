// The folder beside a checkpoint that names its tables.
#ifndef MXREC_CHECKPOINT_FOLDER_H_
#define MXREC_CHECKPOINT_FOLDER_H_

#include <string>
#include <vector>

#include "mxrec/status.h"

namespace mxrec {

// Makes `<directory>/sparse-<base>` for the checkpoint `<directory>/<base>`, or
// `delta-sparse-<base>` if one of its tables is a delta, and removes such
// folders of checkpoints that are gone. In it, per table, `<table>/manifest`
// holds the text that the checkpoint has of the table; in names of tables other
// characters than letters, digits, `_`, `-` and `.` are written as `%XX`.
//
// Scripts look for the folder; nothing here ever reads it. It appears in one
// step, and is to be made when the checkpoint is complete. A folder with
// anything else in it is somebody else's and left alone. A SavedModel
// (`variables/variables`) gets none.
//
// Not for two threads with the same prefix.
Status MakeCheckpointFolder(const std::string& prefix,
                            const std::vector<std::string>& manifests);

}  // namespace mxrec

#endif  // MXREC_CHECKPOINT_FOLDER_H_
