// The text of manifests: lines `name=value`, in UTF-8, where a value has '%',
// line ends and, in lists, separators as %XX. Unknown names are skipped.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "mxrec/checkpoint.h"

namespace mxrec {
namespace {

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '%' || c == '\n' || c == '\r' || c == ' ' || c == ',' ||
        c == ':' || c == '=') {
      char code[4];
      std::snprintf(code, sizeof(code), "%%%02X",
                    static_cast<unsigned char>(c));
      escaped += code;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      plain += static_cast<char>(
          std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::string ShowFloat(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

std::string ShowCrc(uint32_t crc) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08" PRIx32, crc);
  return text;
}

uint32_t ReadCrc(const std::string& text) {
  return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16));
}

int64_t ReadInt(const std::string& text) {
  return std::strtoll(text.c_str(), nullptr, 10);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  std::istringstream stream(text);
  while (std::getline(stream, part, separator)) parts.push_back(part);
  return parts;
}

const char* NameOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kRows:
      return "rows";
    case BlockKind::kEvicted:
      return "evicted";
    case BlockKind::kHistory:
      return "history";
    case BlockKind::kManifest:
      break;
  }
  return "manifest";
}

bool ReadKind(const std::string& text, BlockKind* kind) {
  for (const BlockKind known :
       {BlockKind::kRows, BlockKind::kEvicted, BlockKind::kHistory}) {
    if (text == NameOf(known)) {
      *kind = known;
      return true;
    }
  }
  return false;
}

std::string ShowFile(const SavedFile& file) {
  return Escape(file.suffix) + "," + file.content + "," +
         ShowCrc(file.manifest_crc);
}

SavedFile ReadFile(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ',');
  if (parts.size() < 3) return {};
  return {Unescape(parts[0]), parts[1], ReadCrc(parts[2])};
}

// kRows: name dtype width, name dtype width, ...
bool ReadColumns(const std::string& text, Manifest* manifest) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return true;
  BlockKind kind;
  if (!ReadKind(text.substr(0, colon), &kind)) return true;
  std::vector<Column> columns;
  for (const std::string& part : Split(text.substr(colon + 1), ',')) {
    const std::vector<std::string> fields = Split(part, ' ');
    if (fields.size() != 3) return false;
    columns.push_back({fields[0], fields[1], ReadInt(fields[2])});
    const Column& column = columns.back();
    if (column.dtype != "int64" && column.dtype != "float32") return false;
    if (column.width < 0 || column.width > int64_t{1} << 32) return false;
  }
  manifest->columns[kind] = std::move(columns);
  return true;
}

Status NotAManifest(const std::string& source, const std::string& why) {
  return Status::DataLoss(source + ": " + why);
}

constexpr char kFirstLine[] = "mxrec-table=";

}  // namespace

int Manifest::ColumnOf(BlockKind kind, const char* name) const {
  const auto found = columns.find(kind);
  if (found == columns.end()) return -1;
  for (size_t i = 0; i < found->second.size(); ++i) {
    if (found->second[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string Manifest::Encode() const {
  std::ostringstream out;
  out << kFirstLine << kVersion << "\n";
  out << "table=" << Escape(table) << "\n";
  out << "key_dtype=" << key_dtype << "\n";
  out << "dim=" << dim << "\n";
  out << "optimizer=" << Escape(optimizer) << "\n";
  out << "slot_initials=";
  for (size_t i = 0; i < slot_initials.size(); ++i) {
    out << (i == 0 ? "" : ",") << ShowFloat(slot_initials[i]);
  }
  out << "\n";
  out << "steps=" << steps << "\n";
  out << "updates=" << updates << "\n";
  out << "content=" << content << "\n";
  out << "checkpoint=" << Escape(checkpoint) << "\n";
  out << "sequence=" << sequence << "\n";
  out << "index_before=" << index_before << "\n";
  out << "kind=" << (is_delta ? "delta" : "full") << "\n";
  out << "rows=" << rows << "\n";
  out << "evicted=" << evicted << "\n";
  out << "history=" << history << "\n";
  out << "size=" << size << "\n";
  out << "blocks=" << blocks << "\n";
  out << "blocks_crc=" << ShowCrc(blocks_crc) << "\n";
  for (const auto& entry : columns) {
    out << "columns=" << NameOf(entry.first) << ":";
    bool first = true;
    for (const Column& column : entry.second) {
      out << (first ? "" : ",") << column.name << " " << column.dtype << " "
          << column.width;
      first = false;
    }
    out << "\n";
  }
  for (const SavedFile& file : base) out << "base=" << ShowFile(file) << "\n";
  for (const auto& note : notes) {
    out << "note=" << Escape(note.first) << "," << Escape(note.second) << "\n";
  }
  return out.str();
}

Status Manifest::Decode(const std::string& text, const std::string& source,
                        Manifest* manifest) {
  *manifest = Manifest{};
  const std::vector<std::string> lines = Split(text, '\n');
  const std::string first = kFirstLine;
  if (lines.empty() || lines[0].compare(0, first.size(), first) != 0) {
    return NotAManifest(source, "no manifest of a table");
  }
  const int64_t version = ReadInt(lines[0].substr(first.size()));
  if (version < 1 || version > kVersion) {
    return NotAManifest(source, "format version " +
                                    lines[0].substr(first.size()) +
                                    ", but this program reads up to " +
                                    std::to_string(kVersion));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t equals = lines[i].find('=');
    if (equals == std::string::npos) continue;
    const std::string name = lines[i].substr(0, equals);
    const std::string value = lines[i].substr(equals + 1);
    if (name == "table") manifest->table = Unescape(value);
    if (name == "key_dtype") manifest->key_dtype = value;
    if (name == "dim") manifest->dim = ReadInt(value);
    if (name == "optimizer") manifest->optimizer = Unescape(value);
    if (name == "slot_initials") {
      for (const std::string& part : Split(value, ',')) {
        manifest->slot_initials.push_back(std::strtof(part.c_str(), nullptr));
      }
    }
    if (name == "steps") manifest->steps = ReadInt(value);
    if (name == "updates") manifest->updates = ReadInt(value);
    if (name == "content") manifest->content = value;
    if (name == "checkpoint") manifest->checkpoint = Unescape(value);
    if (name == "sequence") manifest->sequence = ReadInt(value);
    if (name == "index_before") manifest->index_before = value;
    if (name == "kind") manifest->is_delta = value == "delta";
    if (name == "rows") manifest->rows = ReadInt(value);
    if (name == "evicted") manifest->evicted = ReadInt(value);
    if (name == "history") manifest->history = ReadInt(value);
    if (name == "size") manifest->size = ReadInt(value);
    if (name == "blocks") manifest->blocks = ReadInt(value);
    if (name == "blocks_crc") manifest->blocks_crc = ReadCrc(value);
    if (name == "columns" && !ReadColumns(value, manifest)) {
      return NotAManifest(source,
                          "columns that this program does not know: " + value);
    }
    if (name == "base") manifest->base.push_back(ReadFile(value));
    if (name == "note") {
      const std::vector<std::string> parts = Split(value, ',');
      if (parts.empty()) continue;
      manifest->notes[Unescape(parts[0])] =
          parts.size() > 1 ? Unescape(parts[1]) : "";
    }
  }
  if (manifest->dim < 1 || manifest->dim > 8192 || manifest->rows < 0 ||
      manifest->blocks < 0 || manifest->slot_initials.size() > 16) {
    return NotAManifest(source, "a manifest with impossible numbers");
  }
  return Status::Ok();
}

std::string SavedTable::Encode() const {
  std::string text = manifest.Encode();
  for (const SavedFile& file : files) text += "file=" + ShowFile(file) + "\n";
  return text;
}

Status SavedTable::Decode(const std::string& text, const std::string& source,
                          SavedTable* saved) {
  const Status status = Manifest::Decode(text, source, &saved->manifest);
  if (!status.ok()) return status;
  saved->files.clear();
  for (const std::string& line : Split(text, '\n')) {
    if (line.compare(0, 5, "file=") == 0) {
      saved->files.push_back(ReadFile(line.substr(5)));
    }
  }
  if (saved->files.empty()) {
    return Status::DataLoss(source + ": the table's manifest names no file");
  }
  return Status::Ok();
}

}  // namespace mxrec
