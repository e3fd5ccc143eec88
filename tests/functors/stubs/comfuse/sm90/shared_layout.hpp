// Stands in for the header of this name on the host: sizes alone, without wgmma's descriptors.
#pragma once

namespace comfuse::sm90 {

constexpr int kLineBytes = 128, kRowsOfBlock = 64, kBlockBytes = kRowsOfBlock * kLineBytes;

}  // namespace comfuse::sm90
