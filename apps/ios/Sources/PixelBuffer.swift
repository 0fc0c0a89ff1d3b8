// Pixels in the form that Core ML takes. The runner app and generated packages share this file.

import CoreVideo
import Foundation

/// A buffer of `width` times `height` pixels, row by row: red, green and blue together, or one byte of gray. Core ML brings colors into the order
/// that its model wants. Nil when the bytes are not as many, or memory is short.
func pixelBuffer(_ pixels: Data, width: Int, height: Int, channels: Int) -> CVPixelBuffer? {
    guard channels == 1 || channels == 3, pixels.count == width * height * channels else { return nil }
    let format = channels == 1 ? kCVPixelFormatType_OneComponent8 : kCVPixelFormatType_32BGRA
    var buffer: CVPixelBuffer?
    guard CVPixelBufferCreate(nil, width, height, format, nil, &buffer) == kCVReturnSuccess, let made = buffer else { return nil }
    CVPixelBufferLockBaseAddress(made, [])
    defer { CVPixelBufferUnlockBaseAddress(made, []) }
    guard let base = CVPixelBufferGetBaseAddress(made)?.assumingMemoryBound(to: UInt8.self) else { return nil }
    let row = CVPixelBufferGetBytesPerRow(made)
    pixels.withUnsafeBytes { source in
        for y in 0..<height {
            for x in 0..<width {
                let from = (y * width + x) * channels
                if channels == 1 {
                    base[y * row + x] = source[from]
                } else {
                    let to = y * row + 4 * x
                    base[to] = source[from + 2]
                    base[to + 1] = source[from + 1]
                    base[to + 2] = source[from]
                    base[to + 3] = 255
                }
            }
        }
    }
    return made
}
