#pragma once

// What C callers ask for, as the core has it.

#include "c_api/guard.h"
#include "options.h"

namespace bf16codecs::c_api {

inline constexpr bf16codecs_encode_options kEncodeDefaults = BF16CODECS_ENCODE_OPTIONS_INIT;
inline constexpr bf16codecs_decode_options kDecodeDefaults = BF16CODECS_DECODE_OPTIONS_INIT;

inline constexpr bf16codecs_zstd kNoZstd = BF16CODECS_ZSTD_INIT;

// Calls the caller's functions, those that are there. A payload is checked before it is
// decompressed.
Zstd zstd_of(const bf16codecs_zstd* given);

// Throws std::invalid_argument for numbers that have no meaning.
EncodeOptions encode_options(const bf16codecs_encode_options& given);

}  // namespace bf16codecs::c_api
