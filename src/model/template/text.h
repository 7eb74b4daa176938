// A string that knows, for every byte, who wrote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::model::jinja {

// Who wrote a piece of text: the template, the context, or the message of this index (>= 0), which
// is part of the context too.
using Origin = int32_t;
inline constexpr Origin kFromTemplate = -2;
inline constexpr Origin kFromContext = -1;

// UTF-8 text as a sequence of runs of one origin each. Neighbouring runs differ in origin.
class Text {
 public:
  struct Run {
    size_t end;  // byte offset after the run's last byte
    Origin origin;
  };

  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  // kFromTemplate only if the template wrote all of it, else the largest origin in it.
  Origin strongest_origin() const;

  // What this text costs in memory: bytes and runs.
  size_t footprint() const { return bytes_.size() + runs_.size() * sizeof(Run); }

  void Append(std::string_view bytes, Origin origin);
  void Append(const Text& other);
  // Appends the bytes [begin, end) of `other` with their origins.
  void AppendSlice(const Text& other, size_t begin, size_t end);
  Text Slice(size_t begin, size_t end) const;

  // Replaces each byte by transform(byte), which keeps lengths and thereby origins.
  template <typename Transform>
  void TransformBytes(Transform transform) {
    for (char& c : bytes_) c = transform(c);
  }

 private:
  void AddRun(Origin origin);  // covers the bytes after the last run

  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace switchyard::model::jinja
