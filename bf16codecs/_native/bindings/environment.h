#pragma once

namespace bf16codecs {

// Warns of variables that say what cannot be done. No error: one that is set for a fleet must not
// stop its older machines.
void warn_of_environment();

}  // namespace bf16codecs
