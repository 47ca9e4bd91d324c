// What decoding throws: the classes of Python's bf16codecs.errors, by the same names.

export class CodecError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** Not a frame, or a damaged one. */
export class CorruptDataError extends CodecError {}
/** It ends too early. */
export class TruncatedDataError extends CodecError {}
/** The frame has differences to a base, and that is missing, or another one. */
export class BaseMismatchError extends CodecError {}
/** Of the format: a newer release may know it. */
export class UnsupportedVersionError extends CodecError {}
/** What this reader does not do. */
export class UnsupportedError extends CodecError {}
/** More than a page can hold. */
export class MemoryError extends CodecError {}

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
