// CUDA's float16 for a processor: its name.
#pragma once

struct __half { unsigned short bits; };
