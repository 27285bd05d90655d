#!/usr/bin/env bash
# Makes speech.wav, 16 kHz mono 16 bit, and labels.txt, which says where in it someone speaks: start and end in seconds, and the words.
# Needs espeak-ng, sox and bc (apt-get install espeak-ng sox bc).
set -euo pipefail
cd "$(dirname "$0")"
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT

: > labels.txt
count=0
now=0

# A pause of so many seconds.
pause() {
  sox -R -n -r 16000 -c 1 -b 16 "$parts/$((++count)).wav" trim 0 "$1"
  now=$(echo "$now + $1" | bc)
}

# What a voice says; the silence that espeak-ng puts around it is cut off, so that the label is right.
say() {
  espeak-ng -v "$1" -s 165 -w "$parts/said.wav" "$2"
  sox -R "$parts/said.wav" -r 16000 -c 1 -b 16 "$parts/$((++count)).wav" \
    silence 1 0.01 0.5% reverse silence 1 0.01 0.5% reverse gain -n -6
  local end
  end=$(echo "$now + $(soxi -D "$parts/$count.wav")" | bc)
  printf '%.3f\t%.3f\t%s\n' "$now" "$end" "$2" >> labels.txt
  now=$end
}

pause 0.4
say en-us 'Good morning, can you hear me?'
pause 0.7
say en-gb+f3 'Yes, loud and clear.'
pause 0.9
say en-us 'Let us begin.'
pause 0.1

# Soft noise lies over all of it, as in any room: digital silence would make the pauses too easy.
sox -R $(for part in $(seq "$count"); do echo "$parts/$part.wav"; done) "$parts/spoken.wav"
sox -R -n -r 16000 -c 1 -b 16 "$parts/noise.wav" synth "$(soxi -D "$parts/spoken.wav")" pinknoise gain -45
sox -R -D -m -v 1 "$parts/spoken.wav" -v 1 "$parts/noise.wav" speech.wav
