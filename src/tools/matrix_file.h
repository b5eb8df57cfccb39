#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/json.h"
#include "tools/bench_matrix.h"

namespace facet {

// JSON lines of a matrix: the settings, then a line for each measurement. The file on the disk is whole after every
// add(), so that who is interrupted goes on where it ended.
class MatrixFile {
 public:
  // Reads `path` if it is there. `settings`: an object of values that have to be the same for measurements to be
  // compared, and the objects "files" and "sets" (name -> hash), which may have other names, and not others for one
  // name. An error where the file was made with other settings.
  static Result<MatrixFile> open(const std::string& path, const Json& settings);
  const std::vector<MatrixRun>& runs() const { return runs_; }
  Status add(const MatrixRun& run);

 private:
  std::string path_;
  Json settings_;
  std::vector<MatrixRun> runs_;
};

Json to_json(const MatrixRun& r);
Result<MatrixRun> matrix_run_from_json(const Json& j, const std::string& where);

}  // namespace facet
