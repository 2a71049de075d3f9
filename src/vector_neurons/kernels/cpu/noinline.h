// NOINLINE keeps a hot loop in a function of its own: inlined into its caller, compilers fail to vectorize it.

#pragma once

#define NOINLINE __attribute__((noinline))
