import CoreGraphics
import Foundation

/// How pixels are resampled. Nearest takes one pixel and has no filter.
enum Interpolation {
    case nearest, bilinear, bicubic

    /// How far the filter reaches on the smaller grid.
    var reach: Double {
        switch self {
        case .nearest: return 0
        case .bilinear: return 1
        case .bicubic: return 2
        }
    }
}

/// Pixels 0..255, row by row, channels together.
struct Pixels {
    let width: Int
    let height: Int
    let channels: Int
    var values: [Int]
}

/// The preprocessing that the model was packaged with: gray or color, resize, crop the center, (pixel * scale - mean) / std, layout.
///
/// Resizing computes what Pillow computes, to the bit: the filter is widened when an image shrinks, and both passes round to 8 bits.
struct ImageInput {
    let width: Int
    let height: Int
    let channels: Int
    let shorter: Int
    let resizeWidth: Int
    let resizeHeight: Int
    let keepAspect: Bool
    let pad: Int
    let cropWidth: Int
    let cropHeight: Int
    let interpolation: Interpolation
    let planar: Bool
    let reversed: Bool
    let scale: Double
    let mean: [Double]
    let std: [Double]
    let whole: ClosedRange<Double>?

    /// Real values of the input. Colors are read as sRGB, 8 bits each; transparency is dropped.
    func values(_ image: CGImage) throws -> [Double] {
        try values(rgba: colors(image), width: image.width, height: image.height)
    }

    /// The pixels of an image input, where the model itself makes values of them: red, green and blue together, or gray.
    func pixels(_ image: CGImage) throws -> [UInt8] {
        try placed(rgba: colors(image), width: image.width, height: image.height).values.map { UInt8($0) }
    }

    private func colors(_ image: CGImage) throws -> [UInt8] {
        var colors = [UInt8](repeating: 0, count: image.width * image.height * 4)
        let space = CGColorSpace(name: CGColorSpace.sRGB)!
        let drawn = colors.withUnsafeMutableBytes { bytes -> Bool in
            guard let context = CGContext(
                data: bytes.baseAddress, width: image.width, height: image.height, bitsPerComponent: 8, bytesPerRow: image.width * 4,
                space: space, bitmapInfo: CGImageAlphaInfo.noneSkipLast.rawValue)
            else { return false }
            context.draw(image, in: CGRect(x: 0, y: 0, width: image.width, height: image.height))
            return true
        }
        guard drawn else { throw PackagedModelError.image("the image cannot be read as 8-bit sRGB") }
        return colors
    }

    /// Real values of the input, from four bytes a pixel: red, green, blue, unused.
    func values(rgba: [UInt8], width imageWidth: Int, height imageHeight: Int) throws -> [Double] {
        normalized(try placed(rgba: rgba, width: imageWidth, height: imageHeight))
    }

    private func placed(rgba: [UInt8], width imageWidth: Int, height imageHeight: Int) throws -> Pixels {
        let picture = try cropped(resized(split(rgba, imageWidth, imageHeight)))
        guard picture.width == width && picture.height == height else {
            throw PackagedModelError.image("the model takes \(width)x\(height) pixels, got \(picture.width)x\(picture.height)")
        }
        return picture
    }

    private func split(_ rgba: [UInt8], _ imageWidth: Int, _ imageHeight: Int) -> Pixels {
        var out = [Int](repeating: 0, count: imageWidth * imageHeight * channels)
        for index in 0..<imageWidth * imageHeight {
            let red = Int(rgba[4 * index])
            let green = Int(rgba[4 * index + 1])
            let blue = Int(rgba[4 * index + 2])
            if channels == 1 {
                out[index] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
            } else {
                out[3 * index] = red
                out[3 * index + 1] = green
                out[3 * index + 2] = blue
            }
        }
        return Pixels(width: imageWidth, height: imageHeight, channels: channels, values: out)
    }

    private func resized(_ image: Pixels) -> Pixels {
        if shorter > 0 {
            let longer = shorter * max(image.width, image.height) / min(image.width, image.height)
            return image.width <= image.height ? resampled(image, shorter, longer) : resampled(image, longer, shorter)
        }
        if resizeWidth == 0 {
            return image
        }
        if !keepAspect {
            return resampled(image, resizeWidth, resizeHeight)
        }
        let factor = min(Double(resizeWidth) / Double(image.width), Double(resizeHeight) / Double(image.height))
        let innerWidth = min(max(nearestWhole(Double(image.width) * factor), 1), resizeWidth)
        let innerHeight = min(max(nearestWhole(Double(image.height) * factor), 1), resizeHeight)
        return framed(resampled(image, innerWidth, innerHeight))
    }

    private func framed(_ inner: Pixels) -> Pixels {
        var out = [Int](repeating: pad, count: resizeWidth * resizeHeight * channels)
        let left = (resizeWidth - inner.width) / 2
        let top = (resizeHeight - inner.height) / 2
        let row = inner.width * channels
        for y in 0..<inner.height {
            let start = ((top + y) * resizeWidth + left) * channels
            out.replaceSubrange(start..<start + row, with: inner.values[y * row..<(y + 1) * row])
        }
        return Pixels(width: resizeWidth, height: resizeHeight, channels: channels, values: out)
    }

    private func cropped(_ image: Pixels) throws -> Pixels {
        if cropWidth == 0 {
            return image
        }
        guard cropWidth <= image.width && cropHeight <= image.height else {
            throw PackagedModelError.image("cannot crop \(cropWidth)x\(cropHeight) from \(image.width)x\(image.height) pixels")
        }
        let left = nearestWhole(Double(image.width - cropWidth) / 2)
        let top = nearestWhole(Double(image.height - cropHeight) / 2)
        var out: [Int] = []
        out.reserveCapacity(cropWidth * cropHeight * channels)
        for y in 0..<cropHeight {
            let start = ((top + y) * image.width + left) * channels
            out += image.values[start..<start + cropWidth * channels]
        }
        return Pixels(width: cropWidth, height: cropHeight, channels: channels, values: out)
    }

    private func normalized(_ image: Pixels) -> [Double] {
        let area = image.width * image.height
        var out = [Double](repeating: 0, count: area * channels)
        for index in 0..<area {
            for channel in 0..<channels {
                let pixel = image.values[index * channels + (reversed ? channels - 1 - channel : channel)]
                var value = (Double(pixel) * scale - mean[channel]) / std[channel]
                if let whole = whole {
                    value = min(max(value.rounded(.toNearestOrEven), whole.lowerBound), whole.upperBound)
                }
                out[planar ? channel * area + index : index * channels + channel] = value
            }
        }
        return out
    }

    private func resampled(_ image: Pixels, _ toWidth: Int, _ toHeight: Int) -> Pixels {
        if interpolation == .nearest {
            return nearest(image, toWidth, toHeight)
        }
        let wide = toWidth == image.width ? image : transposed(filtered(transposed(image), toWidth))
        return toHeight == image.height ? wide : filtered(wide, toHeight)
    }

    private func nearest(_ image: Pixels, _ toWidth: Int, _ toHeight: Int) -> Pixels {
        let columns = centers(image.width, toWidth)
        let rows = centers(image.height, toHeight)
        var out: [Int] = []
        out.reserveCapacity(toWidth * toHeight * channels)
        for row in rows {
            for column in columns {
                let start = (row * image.width + column) * channels
                out += image.values[start..<start + channels]
            }
        }
        return Pixels(width: toWidth, height: toHeight, channels: channels, values: out)
    }

    private func centers(_ from: Int, _ to: Int) -> [Int] {
        let step = Double(from) / Double(to)
        var position = step * 0.5
        return (0..<to).map { _ in
            defer { position += step }
            return min(Int(position), from - 1)
        }
    }

    /// One pass along the rows' axis. Weights have 22 fractional bits, as in Pillow's 8-bit resampling.
    private func filtered(_ image: Pixels, _ toHeight: Int) -> Pixels {
        let row = image.width * channels
        var out = [Int](repeating: 0, count: toHeight * row)
        for y in 0..<toHeight {
            let (first, weights) = taps(image.height, toHeight, y)
            for x in 0..<row {
                var sum = 1 << 21
                for (offset, weight) in weights.enumerated() {
                    sum += image.values[(first + offset) * row + x] * weight
                }
                out[y * row + x] = min(max(sum >> 22, 0), 255)
            }
        }
        return Pixels(width: image.width, height: toHeight, channels: channels, values: out)
    }

    private func taps(_ from: Int, _ to: Int, _ index: Int) -> (Int, [Int]) {
        let step = Double(from) / Double(to)
        let widened = max(step, 1)
        let reach = interpolation.reach * widened
        let center = (Double(index) + 0.5) * step
        let first = max(Int(center - reach + 0.5), 0)
        let last = min(Int(center + reach + 0.5), from)
        let found = (0..<last - first).map { kernel((Double($0 + first) - center + 0.5) * (1 / widened)) }
        let total = found.reduce(0, +)
        return (first, found.map { weight in
            let share = total == 0 ? weight : weight / total
            return Int((share < 0 ? -0.5 : 0.5) + share * Double(1 << 22))
        })
    }

    private func kernel(_ position: Double) -> Double {
        let x = abs(position)
        if interpolation == .bilinear {
            return x < 1 ? 1 - x : 0
        }
        if x < 1 {
            return (1.5 * x - 2.5) * x * x + 1
        }
        return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0
    }

    private func transposed(_ image: Pixels) -> Pixels {
        var out = [Int](repeating: 0, count: image.values.count)
        for y in 0..<image.height {
            for x in 0..<image.width {
                for channel in 0..<channels {
                    out[(x * image.height + y) * channels + channel] = image.values[(y * image.width + x) * channels + channel]
                }
            }
        }
        return Pixels(width: image.height, height: image.width, channels: channels, values: out)
    }

    private func nearestWhole(_ value: Double) -> Int {
        Int(value.rounded(.toNearestOrEven))
    }
}
