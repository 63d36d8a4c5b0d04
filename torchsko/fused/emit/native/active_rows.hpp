// Iterations of a loop over rows that are not skipped, for C++ and CUDA: their number, then their numbers.

BLOCK void list_active_rows(const V* guard, int stride, int count, int* list) {
  int num = 0;
  for (int k = 0; k < count; ++k) {
    list[1 + num] = k;
    num += in_any_lane(guard[k * stride] != 0);
  }
  list[0] = num;
}

// In a loop over rounds: those of the list of the round before, of all in the first round, for which a sample is not
// done. The list of the round before the first one has the length -1.
BLOCK void list_unfinished_rows(const V* guard, int stride, int count, int* list, V done) {
  const bool is_first = list[0] < 0;
  const int last = is_first ? count : list[0];
  int num = 0;
  for (int k = 0; k < last; ++k) {
    const int row = is_first ? k : list[1 + k];
    list[1 + num] = row;
    num += in_any_lane((guard[row * stride] != 0) & (done == 0));
  }
  list[0] = num;
}
