// What decoding throws: the classes of Python's bf16codecs.errors, by the same names. Each has its name
// as text, since bundlers rename classes.

export class CodecError extends Error {
  name = "CodecError";
}

/** Not a frame, or a damaged one. */
export class CorruptDataError extends CodecError {
  name = "CorruptDataError";
}
/** It ends too early. */
export class TruncatedDataError extends CodecError {
  name = "TruncatedDataError";
}
/** The frame has differences to a base, and that is missing, or another one. */
export class BaseMismatchError extends CodecError {
  name = "BaseMismatchError";
}
/** Of the format: a newer release may know it. */
export class UnsupportedVersionError extends CodecError {
  name = "UnsupportedVersionError";
}
/** What this reader does not do. */
export class UnsupportedError extends CodecError {
  name = "UnsupportedError";
}
/** More than a page can hold. */
export class MemoryError extends CodecError {
  name = "MemoryError";
}
/** There is no store where one was asked for. */
export class StoreError extends CodecError {
  name = "StoreError";
}

/** By the numbers of bf16codecs_status, from 1 on. */
const OF_STATUS = [
  CorruptDataError,
  TruncatedDataError,
  BaseMismatchError,
  UnsupportedVersionError,
  UnsupportedError,
  TypeError, // an invalid argument
  MemoryError, // no room
  MemoryError,
];

/**
 * @param {number} status
 * @param {string} message
 * @returns {Error}
 */
export function errorOfStatus(status, message) {
  const Class = OF_STATUS[status - 1] ?? CodecError;
  return new Class(message);
}
