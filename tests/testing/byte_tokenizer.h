// A tokenizer whose tokens are the 256 bytes and two end tokens: small, complete, no merges.
#pragma once

#include "model/tokenizer.h"

namespace switchyard::testing {

// Token ids: 0 to 255 are the bytes in the order of the byte alphabet (so 0 is '!'), 256 is
// <|endoftext|>, 257 is <|im_end|>.
model::Tokenizer ByteTokenizer();

}  // namespace switchyard::testing
