// Shuffles between the lanes of one quad, each a thread.
#pragma once

#include <string.h>

#include <condition_variable>
#include <mutex>

#define CF_LANES_ARE_THREADS

namespace quad {

// All four wait for each other.
inline void meet() {
  static std::mutex mutex;
  static std::condition_variable all_here;
  static int arrived = 0, meeting = 0;
  std::unique_lock<std::mutex> lock(mutex);
  int const mine = meeting;
  if (++arrived == 4) {
    arrived = 0, ++meeting;
    all_here.notify_all();
  } else {
    all_here.wait(lock, [&] { return meeting != mine; });
  }
}
inline float exchange(float x, int lane, int partner) {
  static float values[4];
  values[lane] = x;
  meet();
  float const theirs = values[partner];
  meet();
  return theirs;
}

}  // namespace quad
