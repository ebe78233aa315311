// The bytes of a file: header, blocks (the last is the manifest) and trailer.
// Little-endian, as are all machines that this library runs on.
#ifndef MXREC_SRC_TABLE_FILE_H_
#define MXREC_SRC_TABLE_FILE_H_

#include <cstdint>
#include <string>

namespace mxrec {

constexpr char kFileMagic[9] = "MXRECTBL";
constexpr char kEndMagic[9] = "MXRECEND";
constexpr uint32_t kBlockMagic = 0x214B4C42;  // "BLK!"

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  char content[16];  // id, hexadecimal
  uint32_t padding;
  uint32_t crc;  // of what is before it
};
static_assert(sizeof(FileHeader) == 40, "part of the format");

struct BlockHeader {
  uint32_t magic;
  uint32_t kind;
  uint64_t size;   // elements
  uint64_t bytes;  // of the payload that follows
  uint32_t payload_crc;
  uint32_t crc;  // of what is before it
};
static_assert(sizeof(BlockHeader) == 32, "part of the format");

struct FileTrailer {
  char magic[8];
  uint64_t manifest_offset;  // of the manifest's block header
  uint64_t file_bytes;
  uint32_t manifest_crc;  // of the manifest's payload
  uint32_t crc;           // of what is before it
};
static_assert(sizeof(FileTrailer) == 32, "part of the format");

// Columns of a block begin at multiples of this.
constexpr int64_t kColumnAlignment = 8;
constexpr int64_t Aligned(int64_t bytes) {
  return (bytes + kColumnAlignment - 1) & ~(kColumnAlignment - 1);
}

// ".data-", five characters of the content's id, "-of-", 'm' (while a file is
// being written: 't') and the file's number in four characters.
std::string TableFileSuffix(const std::string& content, int file_number,
                            bool finished);

}  // namespace mxrec

#endif  // MXREC_SRC_TABLE_FILE_H_
