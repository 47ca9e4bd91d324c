#pragma once

// Tables and numbers of the difference mode for tests.

#include <vector>

#include "check.h"
#include "delta/tables.h"
#include "kernels/delta_tables.h"

namespace bf16codecs::test {

// How the frequencies of a class are spread: anyhow; falling, as those of checkpoints do; with most
// entries absent; all but one as low as can be, that one an entry or the escape; or powers of two.
enum class DeltaSpread { any, falling, few, one_entry, escape, powers };
inline constexpr DeltaSpread kDeltaSpreads[] = {DeltaSpread::any,    DeltaSpread::falling,
                                                DeltaSpread::few,    DeltaSpread::one_entry,
                                                DeltaSpread::escape, DeltaSpread::powers};

delta::ClassCode random_code(DeltaSpread spread, Random& random);

// The tables of a section.
class DeltaModel {
 public:
  explicit DeltaModel(const std::vector<delta::ClassCode>& classes)
      : slots_(classes, kScalarDeltaKernels),
        search_(slots_.get()),
        entries_(slots_.get()),
        entry_words_(kDeltaEntryWords * classes.size()) {
    spread_search(search_, nullptr);
    spell_out_entries(entries_, entry_words_.data());
    search_.slots = entries_.slots = nullptr;
  }

  // With only what these kernels prepare.
  const DeltaTables& tables(const DeltaKernels& kernels) const {
    return kernels.prepare == spread_search       ? search_
           : kernels.prepare == spell_out_entries ? entries_
                                                  : slots_.get();
  }
  const DeltaTables& tables() const { return slots_.get(); }
  unsigned classes() const { return tables().classes; }

  // The number of an item of class c: by frequency, or of any entry, absent ones and the escape
  // included.
  uint16_t likely_number(unsigned c, Random& random) const;
  uint16_t any_number(unsigned c, Random& random) const;

 private:
  uint16_t number_of(unsigned c, unsigned entry, Random& random) const;

  delta::Tables slots_;
  DeltaTables search_, entries_;
  std::vector<uint32_t> entry_words_;
};

DeltaModel random_delta_model(unsigned classes, DeltaSpread spread, Random& random);

}  // namespace bf16codecs::test
