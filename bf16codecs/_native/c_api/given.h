#pragma once

// Converts the options of C callers to those of the core.

#include "c_api/guard.h"
#include "options.h"

namespace bf16codecs::c_api {

inline constexpr bf16codecs_encode_options kEncodeDefaults = BF16CODECS_ENCODE_OPTIONS_INIT;
inline constexpr bf16codecs_decode_options kDecodeDefaults = BF16CODECS_DECODE_OPTIONS_INIT;

inline constexpr bf16codecs_zstd kNoZstd = BF16CODECS_ZSTD_INIT;

// Calls those of the caller's functions that are not null. A payload is checked before it is
// decompressed.
Zstd zstd_of(const bf16codecs_zstd* given);

// Throws std::invalid_argument for numbers out of range.
EncodeOptions encode_options(const bf16codecs_encode_options& given);

}  // namespace bf16codecs::c_api
