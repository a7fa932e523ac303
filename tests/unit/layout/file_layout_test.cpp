#include "layout/file_layout.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

// Fills a file chunk by chunk, as the copy threads do, and returns it.
std::string assemble(const FileLayout& layout, const std::vector<std::string>& contents, std::uint64_t slab) {
  std::string file;
  for (std::uint64_t chunk = 0; chunk < layout.chunk_count(slab); ++chunk) {
    std::string bytes(layout.chunk_bytes(chunk, slab), '?');
    const std::uint64_t begin = chunk * slab;
    if (begin < layout.header().size()) {
      const std::string part = layout.header().substr(begin, bytes.size());
      bytes.replace(0, part.size(), part);
    }
    std::vector<ChunkPiece> pieces;
    layout.chunk_pieces(chunk, slab, pieces);
    for (const ChunkPiece& piece : pieces) {
      EXPECT_GT(piece.size_bytes, 0u);
      bytes.replace(piece.chunk_offset, piece.size_bytes,
                    contents[piece.tensor].substr(piece.tensor_begin, piece.size_bytes));
    }
    file += bytes;
  }
  return file;
}

TEST(FileLayout, ChunksOfAnySizeAssembleToTheSameFile) {
  const std::vector<std::string> contents = {"0000000", "", "11", std::string(100, '2'), "", "", "3", ""};
  const std::string header(32, 'h');
  std::vector<Extent> extents;
  std::string expected = header;
  for (std::uint32_t i = 0; i < contents.size(); ++i) {
    extents.push_back({i, expected.size(), contents[i].size()});
    expected += contents[i];
  }
  const FileLayout layout("f", header, extents);
  ASSERT_EQ(layout.size_bytes(), expected.size());
  for (std::uint64_t slab = 1; slab <= expected.size() + 1; ++slab)
    ASSERT_EQ(assemble(layout, contents, slab), expected) << slab;
}

TEST(FileLayout, AHeaderAloneIsAFile) {
  const FileLayout layout("f", std::string(4096, ' '), {});
  EXPECT_EQ(layout.size_bytes(), 4096u);
  EXPECT_EQ(layout.chunk_count(4096), 1u);
  EXPECT_EQ(layout.chunk_count(4095), 2u);
  EXPECT_EQ(layout.chunk_bytes(1, 4095), 1u);
}

TEST(FileLayout, PiecesAreAppended) {
  const FileLayout layout("f", "hh", {{5, 2, 4}});
  std::vector<ChunkPiece> pieces(1);
  layout.chunk_pieces(1, 3, pieces);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].tensor, 5u);
  EXPECT_EQ(pieces[1].tensor_begin, 1u);
  EXPECT_EQ(pieces[1].chunk_offset, 0u);
  EXPECT_EQ(pieces[1].size_bytes, 3u);
}

}  // namespace
}  // namespace slackwater
