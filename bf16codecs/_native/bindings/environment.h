#pragma once

namespace bf16codecs {

// Warns of environment variables that this machine cannot follow. This is not an error, because a
// setting for a fleet of machines must not stop the older ones.
void warn_of_environment();

}  // namespace bf16codecs
